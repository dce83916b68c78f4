// Keeps the prompts of a coding agent up to date; what is open stays open.
import { follow, fragment, get } from "./page.js";

const groups = document.getElementById("groups");
const { key, from } = groups.dataset;
const all = () => [...groups.querySelectorAll("details.turn")];

async function refresh() {
  const response = await get("timeline", { "key*": key, view: "prompts", piece: "1", from });
  const fresh = fragment(await response.text());
  const known = new Map(all().map((group) => [group.dataset.id, group.open]));
  for (const group of fresh.querySelectorAll("details.turn")) {
    if (known.has(group.dataset.id)) group.open = known.get(group.dataset.id);
  }
  // Read the focus only now: it may have moved during the request.
  const at = document.activeElement.closest?.("[data-nav]")?.getAttribute("href");
  groups.replaceChildren(fresh);
  const same = at && [...groups.querySelectorAll("a[data-nav]")].find((item) => item.getAttribute("href") === at);
  if (same) same.focus({ preventScroll: true });
}

let isFirst = true;
follow(key, async () => {
  if (!isFirst) await refresh(); // the page is fresh already
  isFirst = false;
});

// The list of keys follows the store.
import { follow, fragment, get } from "./page.js";

const list = document.getElementById("list");
const rows = document.getElementById("rows");

async function refresh() {
  const answer = await get("./", { piece: "1", "q*": list.dataset.query, from: list.dataset.from });
  const fresh = fragment(await answer.text());
  // Only now: the focus may have moved while the answer came.
  const at = [...rows.querySelectorAll("[data-nav]")].indexOf(document.activeElement);
  rows.replaceChildren(fresh);
  if (at >= 0) rows.querySelectorAll("[data-nav]")[at]?.focus({ preventScroll: true });
}

follow("", refresh);

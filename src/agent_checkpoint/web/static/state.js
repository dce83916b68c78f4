// Loads the children of a state value when it is opened.
import { fragment, get, say } from "./page.js";

const tree = document.querySelector(".tree");

async function load(at, from) {
  const { id, part } = tree.dataset;
  try {
    const response = await get("state", { "id*": id, "part*": part, at, from });
    return fragment(await response.text());
  } catch {
    say("This value could not be loaded.");
    return null;
  }
}

tree?.addEventListener("toggle", async (event) => {
  const details = event.target;
  if (!details.open || !details.dataset.at || details.dataset.loaded) return;
  details.dataset.loaded = "yes";
  const children = await load(details.dataset.at, null);
  if (children) details.querySelector(".below").replaceChildren(children);
  else delete details.dataset.loaded;
}, true);

tree?.addEventListener("click", async (event) => {
  const more = event.target.closest("a.more");
  if (!more) return;
  event.preventDefault();
  const children = await load(more.dataset.at, more.dataset.from);
  if (children) more.parentElement.replaceWith(children);
});

// Values of a state are asked for when they are opened.
import { fragment, get, say } from "./page.js";

const tree = document.querySelector(".tree");

async function ask(at, from) {
  const { id, part } = tree.dataset;
  try {
    const answer = await get("state", { "id*": id, "part*": part, at, from });
    return fragment(await answer.text());
  } catch {
    say("That could not be shown.");
    return null;
  }
}

tree?.addEventListener("toggle", async (event) => {
  const details = event.target;
  if (!details.open || !details.dataset.at || details.dataset.loaded) return;
  details.dataset.loaded = "yes";
  const found = await ask(details.dataset.at, null);
  if (found) details.querySelector(".below").replaceChildren(found);
  else delete details.dataset.loaded;
}, true);

tree?.addEventListener("click", async (event) => {
  const more = event.target.closest("a.more");
  if (!more) return;
  event.preventDefault();
  const found = await ask(more.dataset.at, more.dataset.from);
  if (found) more.parentElement.replaceWith(found);
});

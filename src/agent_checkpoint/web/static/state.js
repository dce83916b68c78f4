// Values of a state are asked for when they are opened.
import { address, fragment, say } from "./page.js";

const tree = document.querySelector(".tree");

async function ask(at, from) {
  const { id, part } = tree.dataset;
  const answer = await fetch(address("/state", { id, part, at, from }));
  if (!answer.ok) {
    say("That could not be shown.");
    return null;
  }
  return fragment(await answer.text());
}

tree?.addEventListener("toggle", async (event) => {
  const details = event.target;
  if (!details.open || !details.dataset.at || details.dataset.loaded) return;
  details.dataset.loaded = "yes";
  const found = await ask(details.dataset.at, null);
  if (found) details.querySelector(".below").replaceChildren(found);
}, true);

tree?.addEventListener("click", async (event) => {
  const more = event.target.closest("a.more");
  if (!more) return;
  event.preventDefault();
  const found = await ask(more.dataset.at, more.dataset.from);
  if (found) more.parentElement.replaceWith(found);
});

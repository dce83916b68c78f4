// Pages where a person answers. Nothing on them moves by itself: what was answered or became void
// elsewhere stays where it is, and cannot be pressed any more. A list that has changed is drawn
// again when the person wants it.
import { follow, get } from "./page.js";

const answers = document.getElementById("answers");
const news = document.getElementById("news");
const { key, approvals, version } = answers.dataset;

function end(card) {
  card.classList.add("over");
  for (const field of card.querySelectorAll("button, input, textarea")) field.disabled = true;
  card.querySelector(".state").textContent = "answered or void meanwhile";
}

async function refresh() {
  const answer = await get("waiting", { "key*": key, approvals });
  const now = await answer.json();
  const open = new Set(now.open);
  for (const card of answers.querySelectorAll("[data-open]:not(.over)")) {
    if (!open.has(card.dataset.open)) end(card);
  }
  if (version !== undefined) news.classList.toggle("shown", now.version !== version);
}

news.querySelector("button").addEventListener("click", () => location.reload());
follow(key, refresh);

// Pages with approval forms. Their content does not move: a request that was answered elsewhere or
// is no longer valid stays in place, and its form is disabled. A changed list is reloaded on request.
import { follow, get } from "./page.js";

const answers = document.getElementById("answers");
const stale = document.getElementById("stale");
const { key, approvals, version } = answers.dataset;

function disable(card) {
  card.classList.add("over");
  for (const field of card.querySelectorAll("button, input, textarea")) field.disabled = true;
  card.querySelector(".state").textContent = "already answered or void";
}

async function refresh() {
  const response = await get("waiting", { "key*": key, approvals });
  const current = await response.json();
  const open = new Set(current.open);
  for (const card of answers.querySelectorAll("[data-open]:not(.over)")) {
    if (!open.has(card.dataset.open)) disable(card);
  }
  if (version !== undefined) stale.classList.toggle("shown", current.version !== version);
}

stale.querySelector("button").addEventListener("click", () => location.reload());
follow(key, refresh);

// Pages where a person answers: they follow the store, and never take away what is being typed.
import { follow, fragment, get } from "./page.js";

const answers = document.getElementById("answers");
const news = document.getElementById("news");
let shown = answers.innerHTML;
let isTouched = false;

const isBusy = () =>
  isTouched || answers.querySelector("details[open]") || document.activeElement.closest?.("form.answer");

async function refresh() {
  const answer = await get(location.pathname, Object.fromEntries(new URLSearchParams(location.search)));
  const fresh = fragment(await answer.text()).querySelector("#answers");
  if (!fresh || fresh.innerHTML === shown) return;
  if (isBusy()) {
    news.hidden = false;
    return;
  }
  shown = fresh.innerHTML;
  const at = [...answers.querySelectorAll("[data-nav]")].indexOf(document.activeElement);
  answers.replaceChildren(...fresh.childNodes);
  if (at >= 0) answers.querySelectorAll("[data-nav]")[at]?.focus({ preventScroll: true });
}

answers.addEventListener("input", () => { isTouched = true; });
news.querySelector("button").addEventListener("click", () => location.reload());
follow(answers.dataset.key, refresh);

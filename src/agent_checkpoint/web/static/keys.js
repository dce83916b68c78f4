// Keeps the list of keys up to date.
import { follow, fragment, get } from "./page.js";

const list = document.getElementById("list");
const rows = document.getElementById("rows");

async function refresh() {
  const response = await get("./", { piece: "1", "q*": list.dataset.query, from: list.dataset.from });
  const fresh = fragment(await response.text());
  // Read the focus only now: it may have moved during the request.
  const at = [...rows.querySelectorAll("[data-nav]")].indexOf(document.activeElement);
  rows.replaceChildren(fresh);
  if (at >= 0) rows.querySelectorAll("[data-nav]")[at]?.focus({ preventScroll: true });
}

follow("", refresh);

// Streams search results, one JSON object per line. Texts are inserted as text nodes, never as HTML.
import { get } from "./page.js";

const results = document.getElementById("results");
const progress = document.getElementById("progress");
const { key, query } = results.dataset;
const ends = {
  all: "Search complete.",
  many: "Result limit reached: use a more specific term.",
  time: "Time limit reached: not everything was searched.",
  large: "Read limit reached: not everything was searched.",
  failed: "The store could not be read to the end.",
};

function add(match) {
  const item = document.createElement("li");
  const go = document.createElement("a");
  go.href = match.link;
  go.dataset.nav = "";
  go.textContent = match.where || match.kind;
  const at = document.createElement("span");
  at.className = "at";
  at.textContent = ` ${match.where ? `${match.kind}, ` : ""}first in @${match.seq}`;
  const text = document.createElement("pre");
  match.text.forEach((piece, number) => {
    const hit = number % 2 ? document.createElement("mark") : document.createElement("span");
    hit.textContent = piece;
    text.append(hit);
  });
  item.append(go, at, text);
  results.append(item);
}

function take(line) {
  const row = JSON.parse(line);
  if (row.link) add(row);
  else if (row.end) {
    progress.textContent = `${row.found} found in ${row.looked.toLocaleString("en")} checkpoints. ${ends[row.end]}`;
  } else progress.textContent = `Searched ${row.looked.toLocaleString("en")} checkpoints…`;
}

async function search() {
  const response = await get("search/results", { "key*": key, "q*": query });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    lines.filter(Boolean).forEach(take);
  }
}

if (query) search().catch(() => { progress.textContent = "The search failed."; });

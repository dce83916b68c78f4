// Finds come one by one, as lines of JSON. They are put in as text.
import { get } from "./page.js";

const finds = document.getElementById("finds");
const progress = document.getElementById("progress");
const { key, query } = finds.dataset;
const ends = {
  all: "That is all.",
  many: "There may be more: search for something longer.",
  time: "It took too long: not everything was looked through.",
  large: "There is too much: not everything was looked through.",
  failed: "The store could not be read to its end.",
};

function add(find) {
  const item = document.createElement("li");
  const go = document.createElement("a");
  go.href = find.link;
  go.dataset.nav = "";
  go.textContent = find.where || find.kind;
  const at = document.createElement("span");
  at.className = "at";
  at.textContent = ` ${find.where ? `${find.kind}, ` : ""}first at @${find.seq}`;
  const text = document.createElement("pre");
  text.textContent = find.text;
  item.append(go, at, text);
  finds.append(item);
}

function take(line) {
  const row = JSON.parse(line);
  if (row.link) add(row);
  else if (row.end) {
    progress.textContent = `${row.found} found in ${row.looked.toLocaleString("en")} checkpoints. ${ends[row.end]}`;
  } else progress.textContent = `Looked through ${row.looked.toLocaleString("en")} checkpoints…`;
}

async function search() {
  const answer = await get("search/results", { "key*": key, "q*": query });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    lines.filter(Boolean).forEach(take);
  }
}

if (query) search().catch(() => { progress.textContent = "That could not be searched to its end."; });

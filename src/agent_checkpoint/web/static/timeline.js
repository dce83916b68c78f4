// The timeline: blocks of rows are loaded as they come near the viewport, and dropped far from it.
// Rows are numbered from the oldest, so that new rows on top renumber none.
import { follow, fragment, get, say, showSelected } from "./page.js";

const timeline = document.getElementById("timeline");
const { key, view } = timeline.dataset;
const size = Number(timeline.dataset.blockSize);
const height = Number(timeline.dataset.rowHeight);
const near = 1200;
let total = Number(timeline.dataset.total);
let shape = timeline.dataset.shape;
let tail = decodeURIComponent(timeline.dataset.tail); // the end of a call takes the row of its beginning
const blocks = new Map(); // by number: { element, rows, loaded, busy }

const rowsOf = (number) => Math.min(size, total - number * size);
const count = () => Math.ceil(total / size);

function createBlock(number) {
  const element = document.createElement("div");
  element.className = "block";
  element.dataset.number = String(number);
  const block = { element, rows: 0, loaded: false, busy: false };
  blocks.set(number, block);
  resize(number);
  watcher.observe(element);
  return block;
}

function resize(number) {
  const block = blocks.get(number);
  block.rows = rowsOf(number);
  block.element.style.height = `${block.rows * height}px`;
}

async function load(number) {
  const block = blocks.get(number);
  if (!block || block.busy) return;
  block.busy = true;
  try {
    const response = await get("timeline/rows", { "key*": key, view, block: number });
    const piece = fragment(await response.text()).querySelector(".block");
    if (piece && Number(piece.dataset.number) === number) {
      const row = document.activeElement.closest?.(".row")?.dataset.row;
      block.element.replaceChildren(...piece.childNodes);
      block.loaded = true;
      showSelected(block.element);
      const focused = row && block.element.querySelector(`.row[data-row="${row}"] .go`);
      if (focused && document.activeElement === document.body) focused.focus({ preventScroll: true });
    }
  } catch {
    say("Some rows could not be loaded. Scroll to try again.");
  } finally {
    block.busy = false;
  }
}

function drop(block) {
  if (block.element.contains(document.activeElement)) return;
  block.element.replaceChildren();
  block.loaded = false;
}

const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const number = Number(entry.target.dataset.number);
    const block = blocks.get(number);
    if (!block) continue;
    if (entry.isIntersecting && !block.loaded) load(number);
    if (!entry.isIntersecting && block.loaded) drop(block);
  }
}, { rootMargin: `${near}px 0px` });

function start() {
  const first = timeline.querySelector(".block");
  const shown = Number(timeline.dataset.block);
  const pieces = [];
  for (let number = count() - 1; number >= 0; number -= 1) {
    const block = createBlock(number);
    if (number === shown) {
      block.element.replaceChildren(...first.childNodes);
      block.loaded = true;
    }
    pieces.push(block.element);
  }
  timeline.replaceChildren(...pieces);
  const row = new URLSearchParams(location.search).get("row");
  if (row !== null) goTo(Number(row));
}

function goTo(row) {
  const top = timeline.getBoundingClientRect().top + scrollY;
  scrollTo({ top: Math.max(0, top + (total - 1 - row) * height - 120) });
}

async function refresh() {
  const response = await get("timeline/state", { "key*": key, view });
  const state = await response.json();
  const before = total;
  if (state.shape === shape && state.total === before && state.tail === tail) return;
  const isAppend = state.shape === shape && state.total >= before;
  total = state.total;
  tail = state.tail;
  shape = state.shape;
  document.getElementById("total").textContent = state.number;
  if (!isAppend) {
    for (const block of blocks.values()) { watcher.unobserve(block.element); block.element.remove(); }
    blocks.clear();
    for (let number = 0; number < count(); number += 1) timeline.prepend(createBlock(number).element);
    return;
  }
  const last = Math.floor((before - 1) / size);
  for (let number = Math.max(0, last); number < count(); number += 1) {
    if (!blocks.has(number)) timeline.prepend(createBlock(number).element);
    resize(number);
    if (number === last ? blocks.get(number).loaded : number === count() - 1) await load(number);
  }
  // The graph of an older block may continue into the new one, so that block was loaded again.
  for (const item of timeline.querySelectorAll(".row")) {
    item.classList.toggle("fresh", Number(item.dataset.row) >= before);
  }
  if (total > before) say(total - before === 1 ? "1 new checkpoint" : `${total - before} new checkpoints`);
}

// The overview is redrawn after a quiet moment, not for each checkpoint.
const overview = document.getElementById("overview");
let later = 0;

async function redraw() {
  const response = await get("timeline", { "key*": key, view });
  const fresh = fragment(await response.text()).querySelector("#overview");
  if (fresh) overview.replaceChildren(...fresh.childNodes);
}

start();
follow(key, async () => {
  await refresh();
  clearTimeout(later);
  later = setTimeout(() => redraw().catch(() => {}), 3000); // the next update tries again
});
document.addEventListener("click", (event) => {
  if (!event.target.closest("#overview, #to-head")) return;
  const bin = event.target.closest("[data-row]");
  if (bin) {
    event.preventDefault();
    goTo(Number(bin.dataset.row));
  }
});

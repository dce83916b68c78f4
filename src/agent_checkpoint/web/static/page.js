// What every page has: keys of the keyboard, light and dark, choosing two to compare.

export function say(text) {
  const toast = document.getElementById("toast");
  toast.textContent = text;
  toast.hidden = false;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => { toast.hidden = true; }, 4000);
}

// What names something is coded by the server, and sent under a name with a star.
export function address(path, asked) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(asked)) {
    if (value !== "" && value !== null && value !== undefined) query.set(name, value);
  }
  return `${path}?${query}`;
}

// What a server has escaped as a piece of a page. Scripts in it would not run, and there are none.
export function fragment(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content;
}

// Asks whether there is something new, while the page is seen. Nothing is held open: a browser has
// few connections to a host, and people have many tabs. A run that has ended is never asked again,
// and nothing more is sent there: whoever listens there by now is somebody else.
const patience = 5 * 60_000;

export function follow(key, heard) {
  const sign = document.getElementById("live");
  let last = null;
  let wait = 1000;
  let timer = 0;
  let answered = performance.now();
  let isAsking = false;
  let isOver = false;
  const show = (text, state) => {
    if (sign.textContent !== text) sign.textContent = text;
    sign.classList.toggle("on", state === "on");
    sign.classList.toggle("ended", state === "ended");
  };
  async function look() {
    const answer = await get("news", { "key*": key });
    const said = await answer.json();
    if (said.version !== last) await heard();
    last = said.version;
    wait = 1000;
    answered = performance.now();
    show("● live", "on");
  }
  async function ask() {
    clearTimeout(timer);
    if (document.hidden || isAsking || isOver) return;
    isAsking = true;
    const began = performance.now();
    try {
      await look();
    } catch (error) {
      show("○ connecting…", "");
      wait = Math.min(2 * wait, 15_000);
      isOver = error instanceof Stranger || performance.now() - answered > patience;
    }
    isAsking = false;
    if (isOver) {
      show("○ ended", "ended");
      for (const button of document.querySelectorAll("form[method=post] button")) button.disabled = true;
      say("This server has ended. Run agent-checkpoint ui again, and open the address that it prints.");
      return;
    }
    timer = setTimeout(ask, Math.max(wait, 2 * (performance.now() - began)));
  }
  document.addEventListener("visibilitychange", () => { answered = performance.now(); ask(); });
  window.addEventListener("online", () => { wait = 1000; ask(); });
  window.addEventListener("pageshow", ask);
  ask();
}

// An answer of somebody else, who does not know the name of the run that this page is of.
class Stranger extends Error {}

// What a script asks for; what went wrong is for who called. Nothing that a stranger says is shown.
export async function get(path, asked) {
  const { run } = document.documentElement.dataset;
  const answer = await fetch(address(path, asked), { redirect: "error" });
  if (answer.status === 503) throw new Error("too many ask at once"); // tells nothing of who it is
  if (answer.headers.get("Agent-Checkpoint-Run") !== run) throw new Stranger();
  if (!answer.ok) throw new Error(String(answer.status));
  return answer;
}

function setTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* only for this page */ }
}

function move(step) {
  const stops = [...document.querySelectorAll("[data-nav]")].filter((item) => item.offsetParent);
  if (!stops.length) return;
  const at = stops.indexOf(document.activeElement.closest?.("[data-nav]"));
  let next = at + step;
  if (at < 0) {
    const visible = stops.findIndex((item) => item.getBoundingClientRect().bottom > 60);
    next = visible < 0 ? 0 : visible;
  }
  const stop = stops[Math.max(0, Math.min(stops.length - 1, next))];
  stop.focus({ preventScroll: true });
  stop.scrollIntoView({ block: "nearest" });
}

let chosen = null; // { id, row }, the row counted from the oldest

export function showChosen(within = document) {
  for (const button of within.querySelectorAll("[data-pick]")) {
    button.setAttribute("aria-pressed", String(chosen?.id === button.dataset.pick));
  }
}

export function pick(button) {
  const id = button.dataset.pick;
  const row = Number(button.closest("[data-row]")?.dataset.row);
  if (chosen !== null && chosen.id !== id) {
    const [a, b] = chosen.row > row ? [id, chosen.id] : [chosen.id, id];
    location.href = address("diff", { "a*": a, "b*": b });
    return;
  }
  chosen = chosen === null ? { id, row } : null;
  showChosen();
  if (chosen) say("Choose a second one to compare with.");
}

function pickFocused() {
  const button = document.activeElement.closest?.(".row")?.querySelector(".pick");
  if (button) pick(button);
}

const help = document.getElementById("keys");
const keys = {
  j: () => move(1),
  k: () => move(-1),
  x: pickFocused,
  g: () => { location.href = "./"; },
  t: setTheme,
  "/": () => document.getElementById("find")?.focus(),
  "?": () => help.showModal(),
  "[": () => document.getElementById("older")?.click(),
  "]": () => document.getElementById("newer")?.click(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  const typing = event.target.closest?.("input, textarea, select");
  if (typing) {
    if (event.key === "Escape") typing.blur();
    return;
  }
  if (Object.hasOwn(keys, event.key)) {
    event.preventDefault();
    keys[event.key]();
  }
});
document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-pick]");
  if (button) pick(button);
});
const back = document.getElementById("back"); // of a page that tells why something was refused
if (back && history.length > 1) {
  back.hidden = false;
  back.addEventListener("click", () => history.back());
}
document.getElementById("theme").addEventListener("click", setTheme);
document.getElementById("help").addEventListener("click", () => help.showModal());

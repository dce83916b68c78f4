// Shared by all pages: requests, live updates, keyboard shortcuts, theme, selection for comparison.

export function say(text) {
  const toast = document.getElementById("toast");
  toast.textContent = text;
  toast.hidden = false;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => { toast.hidden = true; }, 4000);
}

// Names come percent-encoded from the server; a parameter with an encoded value ends with a star.
export function address(path, params) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== "" && value !== null && value !== undefined) query.set(name, value);
  }
  return `${path}?${query}`;
}

// Parses HTML that the server has escaped. A template runs no scripts.
export function fragment(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content;
}

// Polls for changes while the page is visible. It holds no connection open: a browser allows few per
// host, and people have many tabs. After the server has stopped, nothing more is sent: another program
// may listen at its address by then.
const giveUpAfter = 5 * 60_000;

export function follow(key, onChange) {
  const status = document.getElementById("live");
  let last = null;
  let wait = 1000;
  let timer = 0;
  let lastResponse = performance.now();
  let isPolling = false;
  let isStopped = false;
  const show = (text, state) => {
    if (status.textContent !== text) status.textContent = text;
    status.classList.toggle("on", state === "on");
    status.classList.toggle("ended", state === "ended");
  };
  async function check() {
    const response = await get("updates", { "key*": key });
    const { version } = await response.json();
    if (version !== last) await onChange();
    last = version;
    wait = 1000;
    lastResponse = performance.now();
    show("● live", "on");
  }
  async function poll() {
    clearTimeout(timer);
    if (document.hidden || isPolling || isStopped) return;
    isPolling = true;
    const started = performance.now();
    try {
      await check();
    } catch (error) {
      show("○ connecting…", "");
      wait = Math.min(2 * wait, 15_000);
      isStopped = error instanceof OtherServer || performance.now() - lastResponse > giveUpAfter;
    }
    isPolling = false;
    if (isStopped) {
      show("○ stopped", "ended");
      for (const button of document.querySelectorAll("form[method=post] button")) button.disabled = true;
      say("The server has stopped. Run agent-checkpoint ui again and open the address it prints.");
      return;
    }
    timer = setTimeout(poll, Math.max(wait, 2 * (performance.now() - started)));
  }
  document.addEventListener("visibilitychange", () => { lastResponse = performance.now(); poll(); });
  window.addEventListener("online", () => { wait = 1000; poll(); });
  window.addEventListener("pageshow", poll);
  poll();
}

// The response lacks the run id of this page: it is from another server.
class OtherServer extends Error {}

// Fetches from this run only; callers handle errors. A response of another server is never shown.
export async function get(path, params) {
  const { run } = document.documentElement.dataset;
  const response = await fetch(address(path, params), { redirect: "error" });
  if (response.status === 503) throw new Error("overloaded"); // sent before the run id is added
  if (response.headers.get("Agent-Checkpoint-Run") !== run) throw new OtherServer();
  if (!response.ok) throw new Error(String(response.status));
  return response;
}

function setTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* storage is disabled: the theme lasts for this page */ }
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

let selected = null; // { id, row }; rows are numbered from the oldest

export function showSelected(within = document) {
  for (const button of within.querySelectorAll("[data-pick]")) {
    button.setAttribute("aria-pressed", String(selected?.id === button.dataset.pick));
  }
}

export function pick(button) {
  const id = button.dataset.pick;
  const row = Number(button.closest("[data-row]")?.dataset.row);
  if (selected !== null && selected.id !== id) {
    const [a, b] = selected.row > row ? [id, selected.id] : [selected.id, id];
    location.href = address("diff", { "a*": a, "b*": b });
    return;
  }
  selected = selected === null ? { id, row } : null;
  showSelected();
  if (selected) say("Select a second checkpoint to compare with.");
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
const back = document.getElementById("back"); // on the error page
if (back && history.length > 1) {
  back.hidden = false;
  back.addEventListener("click", () => history.back());
}
document.getElementById("theme").addEventListener("click", setTheme);
document.getElementById("help").addEventListener("click", () => help.showModal());

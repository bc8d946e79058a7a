// The page in the browser: times that count, updates from the stream, buttons, filters and keys.
// Everything works on elements that the server made; text from the server is only ever parsed by the HTML parser,
// in a document without scripts, after the server has escaped it.
import { morph, labelCells } from "./morph.js";

const meta = (name) => document.querySelector(`meta[name="${name}"]`).content;
const root = meta("root");

// -- times


function lasting(seconds) {
  const size = Math.abs(seconds);
  if (size < 119.5) return `${Math.round(size)} s`;
  if (size < 119.5 * 60) return `${Math.round(size / 60)} min`;
  return size < 86400 ? `${(size / 3600).toFixed(1)} h` : `${(size / 86400).toFixed(1)} d`;
}

function tellTimes(within = document) {
  const now = Date.now();
  for (const time of within.querySelectorAll("time[data-time]")) {
    const at = Date.parse(time.dateTime);
    const seconds = (now - at) / 1000;
    const kind = time.dataset.time;
    const text =
      kind === "clock" ? new Date(at).toLocaleTimeString()
      : kind === "since" ? lasting(Math.max(0, seconds))
      : Math.abs(seconds) < 1 ? "now"
      : seconds < 0 ? `in ${lasting(seconds)}` : `${lasting(seconds)} ago`;
    if (time.textContent !== text) time.textContent = text;
    if (!time.dataset.local) {
      time.dataset.local = "1";
      time.title = `${kind === "since" ? "since " : ""}${new Date(at).toLocaleString()}`;
    }
  }
  for (const label of within.querySelectorAll("[data-clock]")) {
    const at = new Date(label.dataset.clock);
    const step = Number(label.dataset.step || 60);
    label.textContent =
      step >= 86400 ? at.toLocaleDateString(undefined, { month: "short", day: "numeric" })
      : at.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: step < 60 ? "2-digit" : undefined });
    label.removeAttribute("data-clock");
  }
}

// -- updates

const sign = document.getElementById("live");
const outage = document.getElementById("outage");
let source = null;

function show(word, kind) {
  sign.className = `live ${kind}`;
  sign.querySelector(".word").textContent = word;
}

function setDown(why) {
  document.body.classList.toggle("is-down", why !== null);
  outage.hidden = why === null;
  if (why !== null) {
    outage.querySelector("span").textContent = why;
    show("no answer", "is-down");
  }
}

function take(blocks) {
  const began = performance.now();
  for (const [name, html] of Object.entries(blocks)) {
    const place = document.querySelector(`[data-live="${CSS.escape(name)}"]`);
    if (!place) continue;
    const fresh = new DOMParser().parseFromString(`<div>${html}</div>`, "text/html").body.firstElementChild;
    labelCells(fresh);
    tellTimes(fresh);
    morph(place, fresh);
  }
  document.body.dataset.updated = String(Number(document.body.dataset.updated || 0) + 1);
  if (Object.keys(blocks).length) document.body.dataset.updateMs = (performance.now() - began).toFixed(1);
}

function connect() {
  source?.close();
  source = new EventSource(meta("live"));
  source.addEventListener("blocks", (event) => {
    setDown(null);
    show("live", "is-live");
    take(JSON.parse(event.data));
  });
  source.addEventListener("up", () => setDown(null));
  source.addEventListener("down", (event) => setDown(JSON.parse(event.data).why));
  source.addEventListener("problem", (event) => show(JSON.parse(event.data).why.slice(0, 60), "is-down"));
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) {
      // Refused: the session may have expired. Otherwise the browser reconnects by itself.
      show("not connected", "is-down");
      setTimeout(() => document.hidden || connect(), 3000);
    } else show("connecting again", "is-down");
  };
}

function hang() {
  source?.close();
  source = null;
  show("paused", "");
}

document.addEventListener("visibilitychange", () => (document.hidden ? hang() : connect()));
addEventListener("pagehide", hang);
addEventListener("pageshow", (event) => event.persisted && connect());

// -- buttons

const dialog = document.getElementById("dialog");

function toast(text, bad = false) {
  const one = document.createElement("div");
  one.className = bad ? "toast bad" : "toast";
  one.textContent = text;
  document.getElementById("toasts").append(one);
  setTimeout(() => one.remove(), bad ? 12000 : 6000);
}

async function post(address, fields) {
  const answer = await fetch(address, {
    method: "POST",
    body: new URLSearchParams(fields),
    headers: { "x-csrf-token": meta("csrf"), accept: "application/json" },
  });
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(body.problem || `The server answered ${answer.status}.`);
  return body.done;
}

async function press(button) {
  button.setAttribute("aria-busy", "true");
  try {
    if ("now" in button.dataset) {
      toast(await post(button.href, {}));
      return;
    }
    const answer = await fetch(button.href, { headers: { "x-csrf-token": meta("csrf"), accept: "text/html" } });
    if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).problem || `The server answered ${answer.status}.`);
    const parsed = new DOMParser().parseFromString(await answer.text(), "text/html");
    dialog.replaceChildren(...parsed.body.childNodes);
    dialog.showModal();
    (dialog.querySelector("input:not([type=hidden]), textarea") ?? dialog.querySelector("button[type=submit]"))?.focus();
  } catch (error) {
    toast(error.message, true);
  } finally {
    button.removeAttribute("aria-busy");
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("a.button[data-now], a.button[data-dialog]");
  if (button && !event.metaKey && !event.ctrlKey) {
    event.preventDefault();
    press(button);
  }
  if (event.target.closest("[data-close]") && dialog.open) {
    event.preventDefault();
    dialog.close();
  }
  if (event.target.closest("[data-help]")) document.getElementById("help").showModal();
  if (event.target.closest("[data-theme-toggle]")) {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    localStorage.setItem("orchestration-theme", next);
    document.documentElement.dataset.theme = next;
  }
});

dialog.addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  const submit = form.querySelector("button[type=submit]");
  const problem = form.querySelector(".problem");
  submit.setAttribute("aria-busy", "true");
  problem.hidden = true;
  try {
    const message = await post(form.action, new FormData(form));
    dialog.close();
    toast(message);
  } catch (error) {
    problem.textContent = error.message;
    problem.hidden = false;
  } finally {
    submit.removeAttribute("aria-busy");
  }
});

// -- the filter: suggestions are for its last word

const filter = document.querySelector("[data-filter]");
if (filter) {
  const list = document.getElementById("suggestions");
  const words = [...list.options].map((option) => option.value);
  filter.addEventListener("input", () => {
    const at = filter.value.lastIndexOf(" ") + 1;
    const before = filter.value.slice(0, at);
    const word = filter.value.slice(at).toLowerCase();
    const found = words.filter((one) => one.toLowerCase().includes(word)).slice(0, 30);
    list.replaceChildren(...found.map((one) => new Option(before + one, before + one)));
  });
}

// -- the label of the shape under the pointer of the timeline

const tip = document.getElementById("tip");
document.addEventListener("pointermove", (event) => {
  const shape = event.target.closest?.(".lane a, .graph a");
  const label = shape?.querySelector("title");
  if (label && !shape.dataset.label) {
    shape.dataset.label = label.textContent;
    shape.setAttribute("aria-label", label.textContent);
    label.remove(); // otherwise the browser shows it as well
  }
  tip.hidden = !shape?.dataset.label;
  if (tip.hidden) return;
  tip.textContent = shape.dataset.label;
  const { offsetWidth: width, offsetHeight: height } = tip;
  const left = Math.max(8, Math.min(event.clientX + 12, innerWidth - width - 8));
  const top = event.clientY + 16 + height > innerHeight ? event.clientY - height - 8 : event.clientY + 16;
  tip.attributeStyleMap.set("left", CSS.px(left));
  tip.attributeStyleMap.set("top", CSS.px(top));
});

// -- keys

const PAGES = { o: "", j: "jobs", t: "timeline", g: "graph", r: "runs", s: "schedule", d: "letters", w: "workers", a: "audit" };
let going = false;

function step(by) {
  const rows = [...document.querySelectorAll("[data-rows] tbody tr:not(.why), .findings li")].filter((row) => row.offsetParent);
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.classList.contains("chosen"));
  rows[at]?.classList.remove("chosen");
  const next = rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? (by > 0 ? 0 : rows.length - 1) : at + by))];
  next.classList.add("chosen");
  next.scrollIntoView({ block: "nearest" });
  next.querySelector("a")?.focus({ preventScroll: true });
}

function zoom(by) {
  const steps = [...document.querySelectorAll("[data-zoom]")];
  const at = steps.findIndex((one) => one.hasAttribute("aria-current"));
  steps[at + by]?.click();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, textarea, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (document.querySelector("dialog[open]")) return;
  if (going && event.key in PAGES) {
    location.href = `${root}/${PAGES[event.key]}`;
    return;
  }
  going = event.key === "g";
  const keys = {
    "/": () => filter?.focus(),
    j: () => step(1),
    k: () => step(-1),
    "+": () => zoom(-1),
    "-": () => zoom(1),
    "?": () => document.getElementById("help").showModal(),
  };
  if (event.key in keys) {
    event.preventDefault();
    keys[event.key]();
  }
});

document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
labelCells(document);
tellTimes();
setInterval(() => document.hidden || tellTimes(), 1000);
if (document.hidden) show("paused", "");
else connect();

// Make an element equal to another one with as few changes as possible: scroll position, hover and focus of the user
// are kept. Children with data-key keep their identity; cells whose text changed flash once.

const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null);
const FLASH = "td, dd, .sentence, .held";

export function morph(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  attributes(old, fresh);
  children(old, fresh);
}

function attributes(old, fresh) {
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !KEPT.has(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (name === "class" && old.classList.contains("chosen")) old.className = `${value} chosen`;
    else if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
}
// Attributes that the page itself has set.
const KEPT = new Set(["data-live", "open", "aria-busy", "class"]);

function children(old, fresh) {
  const keyed = new Map([...old.children].filter(keyOf).map((child) => [keyOf(child), child]));
  let at = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const key = keyOf(wanted);
    const known = key ? keyed.get(key) : null;
    if (known) {
      keyed.delete(key);
      if (known === at) at = at.nextSibling;
      else old.insertBefore(known, at);
      update(known, wanted);
    } else if (!key && at && !keyOf(at) && at.nodeName === wanted.nodeName) {
      const here = at;
      at = at.nextSibling;
      update(here, wanted);
    } else {
      old.insertBefore(wanted, at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function update(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.nodeName === "TIME" && old.dateTime === fresh.dateTime && old.dataset.time === fresh.dataset.time) return;
  const before = old.matches(FLASH) ? textOf(old) : null;
  morph(old, fresh);
  if (before !== null && before !== textOf(old)) flash(old);
}

// The text without times, which change all the time.
function textOf(element) {
  const times = [...element.querySelectorAll("time")].map((one) => one.dateTime).join();
  return times ? times : element.textContent;
}

function flash(element) {
  element.classList.remove("flash");
  requestAnimationFrame(() => element.classList.add("flash"));
  element.addEventListener("animationend", () => element.classList.remove("flash"), { once: true });
}

// On a phone a row is a list: each cell needs the title of its column.
export function labelCells(within) {
  for (const table of within.querySelectorAll("table.rows")) {
    const heads = [...table.querySelectorAll("thead th")].map((one) => one.textContent.trim());
    for (const row of table.querySelectorAll("tbody tr:not(.why)")) {
      [...row.children].forEach((cell, at) => {
        if (cell.nodeName === "TD" && cell.classList.contains("num")) cell.dataset.head = heads[at];
      });
    }
  }
}

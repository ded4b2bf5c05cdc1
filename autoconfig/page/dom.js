// Elements without a framework. Text is always set as text: nothing that a user or an answer says is read as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "textContent") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An HTML element: attributes, `onclick` and the like, children (elements or text). */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export const byId = (id) => document.getElementById(id);

export function replace(parent, ...children) {
  parent.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
}

/** Draws into a box now and whenever its width changes: `draw(width)` gives the element. */
export function responsive(draw, attributes) {
  const box = h("div", attributes);
  let before = 0;
  const redraw = () => {
    const width = Math.floor(box.clientWidth);
    if (width > 0 && width !== before) {
      before = width;
      replace(box, draw(width));
    }
  };
  new ResizeObserver(redraw).observe(box);
  return box;
}

let tip = null;

/** Shows lines of text beside a point of the window. */
export function showTip(lines, x, y) {
  if (!tip) {
    tip = h("div", { class: "tip", role: "status" });
    document.body.append(tip);
  }
  replace(tip, lines.map((line, index) => h("div", { class: index ? null : "tip-head" }, line)));
  tip.hidden = false;
  const { offsetWidth: width, offsetHeight: height } = tip;
  tip.style.left = `${Math.max(4, Math.min(x + 14, window.innerWidth - width - 4))}px`;
  tip.style.top = `${y + height + 18 > window.innerHeight ? Math.max(4, y - height - 10) : y + 14}px`;
}

export function hideTip() {
  if (tip) tip.hidden = true;
}

/** Hover texts: `lines(event)` gives what to show, or nothing. */
export function hover(element, lines) {
  element.addEventListener("mousemove", (event) => {
    const found = lines(event);
    if (found) showTip(found, event.clientX, event.clientY);
    else hideTip();
  });
  element.addEventListener("mouseleave", hideTip);
  return element;
}

/** A table from a head and rows of cells; numbers are right-aligned by the class of their column. */
export function table(caption, head, rows, attributes) {
  return h("table", attributes,
    h("caption", { class: "unseen" }, caption),
    h("thead", null, h("tr", null, head.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", null, rows.map((cells) => h("tr", null, cells.map((cell, index) =>
      index ? h("td", null, cell) : h("th", { scope: "row" }, cell))))));
}

const UNITS = { "µs": 1e-6, ms: 1e-3, s: 1 };

/** What a cell is sorted by: its number with its unit, else its text. */
function sortKey(cell) {
  const text = cell ? cell.textContent.trim() : "";
  const found = /^(-?[\d,]+(?:\.\d+)?)\s*(µs|ms|s)?/.exec(text);
  return found ? Number(found[1].replaceAll(",", "")) * (UNITS[found[2]] || 1) : text;
}

/** Makes the columns of a table sort its rows: up, down, as they were. `order` keeps the choice where the table is drawn again. */
export function sortable(element, order) {
  const body = element.tBodies[0];
  const rows = [...body.rows];
  const heads = [...element.tHead.rows[0].cells];
  const apply = () => {
    const place = heads.findIndex((head) => head.textContent === order.column);
    heads.forEach((head, index) => (index === place ? head.setAttribute("aria-sort", order.up ? "ascending" : "descending")
      : head.removeAttribute("aria-sort")));
    element.classList.toggle("sorted", place >= 0);
    const compared = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
    const sorted = place < 0 ? rows : [...rows].sort((a, b) =>
      (order.up ? 1 : -1) * compared(sortKey(a.cells[place]), sortKey(b.cells[place])));
    body.append(...sorted);
  };
  for (const head of heads.filter((one) => one.tagName === "TH")) {
    const name = head.textContent;
    replace(head, h("button", { type: "button", class: "sort", onclick: () => {
      const again = order.column === name;
      Object.assign(order, again && !order.up ? { column: null } : { column: name, up: !again });
      apply();
    } }, name));
  }
  apply();
  return element;
}

/** Above an answer: what was asked as words of a line, a quiet line, everything that was assumed. */
export function summaryBox(asked, quiet, assumed) {
  return h("div", { class: "summary" },
    h("p", null, asked.map((words, index) => [index ? " · " : "", index ? words : h("strong", null, words)])),
    h("p", { class: "quiet" }, quiet),
    assumed.length ? h("details", { class: "quiet" }, h("summary", null, `${assumed.length} assumptions`),
      h("ul", null, assumed.map((line) => h("li", null, line)))) : null);
}

/** Copies a text and says so on the button. */
export function copyButton(label, text) {
  const button = h("button", { type: "button" }, label);
  button.addEventListener("click", async () => {
    const done = await copy(typeof text === "function" ? text() : text);
    button.textContent = done ? "Copied" : "Copying is not allowed here";
    setTimeout(() => { button.textContent = label; }, 1500);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { value: text, class: "unseen" });
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

/** Offers a text as a file. */
export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

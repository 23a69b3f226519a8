// Elements, texts and tables. All that comes from a server or a trace becomes text nodes: names and payloads can be
// anything.

const LONG = 240;
/** The result of `make`, or `otherwise` if it throws. */
function attempt(make, otherwise = null) {
  try {
    return make();
  } catch {
    return otherwise;
  }
}
const byId = (id) => document.getElementById(id);

/** Makes an element. `properties` are properties or attributes; texts and elements become its content. */
function element(name, properties, ...content) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties ?? {})) {
    if (key in made && key !== "list") made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...content.filter((part) => part !== null && part !== undefined && part !== false));
  return made;
}

/** Writes out what cannot be seen, so that no name looks like another. */
function plain(value) {
  const hidden = /[\p{C}\p{DI}\p{Zl}\p{Zp}]/gu;
  return String(value).replace(hidden, (character) => `\\u{${character.codePointAt(0).toString(16)}}`);
}
const plainLines = (text) => text.replace(/[^\n\t]+/g, plain);
const short = (text) => text.length > LONG ? `${text.slice(0, LONG - 60)} … ${text.slice(-50)}` : text;
const shown = (value) => short(plain(value));
const number = (value) => value === null || value === undefined ? "" : value.toLocaleString("en");
const many = (count, what) => `${number(count)} ${what}${count === 1 ? "" : "s"}`;

/** Sets the text of an element, unless it has it already: screen readers then stay silent. */
function put(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

function pairs(rows) {
  const lines = rows.filter(Boolean).map(([name, ...value]) =>
    element("div", null, element("dt", null, name), element("dd", null, ...value)));
  return element("dl", null, ...lines);
}

function button(label, act, className = "") {
  const made = element("button", { type: "button", className }, label);
  made.addEventListener("click", act);
  return made;
}

const link = (text, act) => button(text, act, "link");

/** Calls `act` instead of sending a form. */
function onSubmit(form, act) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    act?.();
  });
}

const remark = (text, isProblem = false) => element("p", { className: isProblem ? "problem" : "soft" }, text);
const section = (title, ...content) => element("section", null, element("h3", null, title), ...content);

/**
 * An empty table that scrolls by itself; `fill` shows items in it. label: for screen readers. narrow: how it is on
 * narrow screens: `cards`, a row on several lines; `records`, the cells `a`, `t` and `z` on a line, the others below;
 * `packed`, with columns as narrow as need be; else it scrolls sideways.
 */
function grid(label, narrow = "") {
  const properties = { className: `scroll ${narrow}`, tabIndex: 0, role: "region", ariaLabel: label };
  return element("div", properties, element("table"));
}

/** A table that does not change. columns: [title, classes], as for `fill`. rows: the contents of their cells. */
function tableOf(label, columns, rows, narrow = "") {
  const region = grid(label, narrow);
  const cells = columns.map(([title, classes], at) => [title, ([, row], cell) => cell.append(row[at]), classes, []]);
  fill(region, cells, Array.from(rows.entries()), ([index]) => index);
  return region;
}

/** A button in each row of a table; `act` is called with the item that the row shows then, and the row. */
function rowButton(label, act) {
  return (row) => {
    const made = button(label, () => act(row.shown, row));
    made.setAttribute("aria-describedby", row.cells[0].id);
    return made;
  };
}

let rowsMade = 0;

/**
 * Shows items as rows of a grid. Rows stay the same elements as long as their keys do, so the focus stays where it is.
 *
 * columns: [title, text of an item, classes, makers of the cell's elements]; with makers, the second is called with the
 * item and the cell, or null. Classes: `n` for numbers, `w` for text that wraps, `x` for what narrow screens leave out.
 * classOf: the class of an item's row: `bad`, `warn`, `off`, or `chosen`. titleOf: the tool tip of its cells. act:
 * called with the item and the row when the first cell is pressed, which is a button then.
 */
function fill(region, columns, items, keyOf, { classOf = () => "", titleOf = () => "", act = null } = {}) {
  const table = region.querySelector("table");
  if (!table.tHead) {
    const titles = columns.map(([title, , className = ""]) => element("th", { scope: "col", className }, title));
    table.append(element("thead", null, element("tr", null, ...titles)), element("tbody"));
  }
  const body = table.tBodies[0], wanted = new Set(items.map((item) => String(keyOf(item)))), rows = new Map();
  for (const row of Array.from(body.rows)) {
    if (wanted.has(row.key) && !rows.has(row.key)) rows.set(row.key, row);
    else row.remove();
  }
  let next = body.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item)), row = rows.get(key) ?? newRow(columns, item, key, act);
    rows.delete(key);
    row.shown = item;
    row.className = classOf(item);
    row.ariaCurrent = row.classList.contains("chosen") ? "true" : null;
    columns.forEach(([, of, , makers], index) => {
      if (of && makers) of(item, row.cells[index]);
      else if (of) {
        const text = plain(of(item)), cell = row.cells[index];
        put(cell.firstElementChild, short(text));
        cell.title = text.length > LONG ? text : titleOf(item);
      }
    });
    if (row === next) next = next.nextElementSibling;
    else body.insertBefore(row, next);
  }
}

function newRow(columns, item, key, act) {
  const row = element("tr");
  Object.assign(row, { key, shown: item });
  columns.forEach(([title, of, className = "", makers], index) => {
    const cell = row.insertCell();
    cell.className = className;
    cell.dataset.title = title;
    if (index === 0) cell.id = `row-${++rowsMade}`;
    if (makers) cell.append(...makers.map((make) => make(row)));
    else if (act && index === 0) cell.append(link("", () => act(row.shown, row)));
    else if (of) cell.append(element("bdi"));
  });
  return row;
}

const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0"));
const offsetText = (offset) => offset.toString(16).padStart(4, "0");

/** Bytes in lines of 16, with their offsets and their ASCII characters. */
function hexDump(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const row = bytes.subarray(at, at + 16);
    const text = Array.from(row, (byte) => byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : ".").join("");
    lines.push(`${offsetText(at)}  ${hex(row).join(" ").padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}

/** A payload. about: says what it is. forms: the ways to show it, the first at first: [name, makes the text, note]. */
function payloadOf(about, forms) {
  const area = element("pre", { tabIndex: 0 }), note = element("span", { className: "soft" });
  const buttons = forms.map(([name, make, said]) => {
    const made = button(name, () => {
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === made));
      area.className = name === "Hex" ? "hex" : "";
      area.textContent = make();
      put(note, said);
    });
    return made;
  });
  buttons[0].click();
  const heading = element("span", { className: "grow" }, about, note);
  return element("div", { className: "payload" }, element("div", { className: "buttons" }, heading, ...buttons), area);
}

/** The fields of a frame with their bytes. fields: [offset, length, bytes that are there or null, name, value]. */
function bytesTable(label, fields) {
  const columns = [["Offset", "n"], ["Bytes", "w code"], ["Field"], ["Value", "w"]];
  const textOfBytes = (bytes, length) =>
    hex(bytes.subarray(0, 16)).join(" ") + (bytes.length && length > Math.min(bytes.length, 16) ? " …" : "");
  return tableOf(label, columns, fields.map(([offset, length, bytes, ...row]) =>
    [offsetText(offset), bytes ? textOfBytes(bytes, length) : "··", ...row]), "bytes packed");
}

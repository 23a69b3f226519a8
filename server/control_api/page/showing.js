// Elements, texts and tables. All that comes from the server becomes text nodes: names and payloads can be anything.

const LONG = 240;
const byId = (id) => document.getElementById(id);

/** Makes an element. `properties` are properties or attributes; texts and elements become its content. */
function element(name, properties, ...content) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties ?? {})) {
    if (key in made && key !== "list") made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...content.filter((each) => each !== null && each !== undefined && each !== false));
  return made;
}

/** Writes out what cannot be seen, so that no name looks like another. */
function plain(value) {
  const hidden = /[\p{C}\p{DI}\p{Zl}\p{Zp}]/gu;
  return String(value).replace(hidden, (each) => `\\u{${each.codePointAt(0).toString(16)}}`);
}
const plainLines = (text) => text.replace(/[^\n\t]+/g, plain);
const short = (text) => text.length > LONG ? `${text.slice(0, LONG - 60)} … ${text.slice(-50)}` : text;
const number = (value) => value === null || value === undefined ? "" : value.toLocaleString("en");
const many = (count, what) => `${number(count)} ${what}${count === 1 ? "" : "s"}`;
const yes = (value) => value ? "yes" : "no";
const clock = (ms) => {
  const when = new Date(ms);
  return `${when.toLocaleTimeString("en-GB")}.${String(when.getMilliseconds()).padStart(3, "0")}`;
};

/** Sets the text of an element, unless it has it already: screen readers then stay silent. */
function put(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

function pairs(rows) {
  const lines = rows.filter(Boolean).map(([name, ...value]) =>
    element("div", null, element("dt", null, name), element("dd", null, ...value)));
  return element("dl", null, ...lines);
}

/** A button that looks like a link. */
function link(text, act) {
  const made = element("button", { type: "button", className: "link" }, text);
  made.addEventListener("click", act);
  return made;
}

/** A button. */
function button(label, act) {
  const made = element("button", { type: "button" }, label);
  made.addEventListener("click", act);
  return made;
}

// --- tables -------------------------------------------------------------------------------------------------------

/**
 * An empty table that scrolls by itself; `fill` shows items in it. label: for screen readers. narrow: how it is on
 * narrow screens: `cards`, a row on several lines; `packed`, with columns as narrow as need be; else it scrolls
 * sideways.
 */
function grid(label, narrow = "") {
  const properties = { className: `scroll ${narrow}`, tabIndex: 0, role: "region", ariaLabel: label };
  return element("div", properties, element("table"));
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
 * isBad, isOff: whether an item is shown as a failure, or as disabled. act: called with the item and the row when the
 * first cell is pressed, which is a button then.
 */
function fill(region, columns, items, keyOf, { isBad = () => false, isOff = () => false, act = null } = {}) {
  const table = region.querySelector("table");
  if (!table.tHead) {
    const cells = columns.map(([title, , className = ""]) => element("th", { scope: "col", className }, title));
    table.append(element("thead", null, element("tr", null, ...cells)), element("tbody"));
  }
  const body = table.tBodies[0];
  const wanted = new Set(items.map((item) => String(keyOf(item))));
  const rows = new Map();
  for (const row of Array.from(body.rows)) {
    if (wanted.has(row.key) && !rows.has(row.key)) rows.set(row.key, row);
    else row.remove();
  }
  let next = body.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item)), row = rows.get(key) ?? newRow(columns, item, key, act);
    rows.delete(key);
    row.shown = item;
    row.classList.toggle("bad", Boolean(isBad(item)));
    row.classList.toggle("off", Boolean(isOff(item)));
    columns.forEach(([, of, , make], index) => {
      if (of && make) of(item, row.cells[index]);
      else if (of) putCell(row.cells[index], plain(of(item)));
    });
    if (row === next) next = next.nextElementSibling;
    else body.insertBefore(row, next);
  }
}

function newRow(columns, item, key, act) {
  const row = element("tr");
  row.key = key;
  row.shown = item;
  columns.forEach(([title, of, className = "", make], index) => {
    const cell = row.insertCell();
    cell.className = className;
    cell.dataset.title = title;
    if (index === 0) cell.id = `row-${++rowsMade}`;
    if (make) cell.append(...make.map((each) => each(row)));
    else if (act && index === 0) cell.append(link("", () => act(row.shown, row)));
    else if (of) cell.append(element("bdi"));
  });
  return row;
}

function putCell(cell, text) {
  put(cell.firstElementChild, short(text));
  if (text.length > LONG) cell.title = text;
  else cell.removeAttribute("title");
}

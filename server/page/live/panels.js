// Panels: the parts of the page, each of one script.

const yes = (value) => value ? "yes" : "no";
const clock = (ms) => {
  const when = new Date(ms);
  return `${when.toLocaleTimeString("en-GB")}.${String(when.getMilliseconds()).padStart(3, "0")}`;
};
const LISTED = 50;  // rows of a page
const main = byId("main");
const panels = new Map(), onRestart = [];

/**
 * Adds a panel at the end of the page, and its link in the navigation.
 *
 * id: of its element. tools: an element above the note, such as a form; body: elements below it. look: requests what
 * the panel shows and shows it, called about once a second while the panel is open; a Refused that it throws is shown
 * in the note. needs: the server's capability without which the panel is hidden. open: whether it is open at first;
 * null: folded as long as it has no rows, until the user folds or unfolds it.
 *
 * Returns it, with `count(text)` beside its title, `note(text, isProblem)`, and `root`, its element.
 */
function addPanel({ id, title, tools = null, body = [], look, needs = null, open = null }) {
  const counted = element("span", { className: "count" });
  const notes = element("p", { className: "note", id: `${id}-note` });
  const inside = element("div", { className: "inside" }, tools, notes, ...body), summary = element("summary", null,
    element("h2", null, title), counted);
  const root = element("details", { id, open: open === true }, summary, inside);
  const item = element("li", null, element("a", { href: `#${id}` }, title));
  item.firstElementChild.addEventListener("click", () => { root.open = true; });
  let isAutomatic = open === null, isUnfolded = root.open;
  root.addEventListener("toggle", () => {
    if (root.open !== isUnfolded) isAutomatic = false;
    lookSoon(0);
  });
  main.append(root);
  byId("parts").insertBefore(item, byId("parts").lastElementChild);
  const panel = {
    root, item, needs,
    async look() {
      try {
        await look();
        if (notes.classList.contains("problem")) panel.note("");
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        panel.note(error.message, true);
      }
      if (isAutomatic && !root.contains(document.activeElement)) {
        root.open = isUnfolded = root.querySelector("tbody tr") !== null;
      }
    },
    isActive: () => !root.hidden && (root.open || isAutomatic),
    count: (text) => put(counted, text),
    note(text, isProblem = false) {
      notes.classList.toggle("problem", isProblem);
      put(notes, plain(text));
    },
  };
  panels.set(id, panel);
  return panel;
}

/**
 * Adds a panel whose body is one table. rows: requests the items and returns them, called with the panel; columns,
 * keyOf, classOf: as for `fill`. narrow: as for `grid`.
 */
function addTable({ narrow = "cards", columns, keyOf, classOf, rows, ...parts }) {
  const table = grid(parts.title, narrow);
  const panel = addPanel({ ...parts, body: [table], async look() {
    fill(table, columns, await rows(panel), keyOf, { classOf });
  } });
}

/** A button in each row that changes the row's item at the server; `said` returns what was done, as text. */
const change = (label, method, path, said) => rowButton(label, (each) =>
  act(() => ask(method, path, { parts: each }), (answer) => said(each, answer)));

/** Whether the server can do something; one whose capabilities are not known can do everything. */
const can = (capability) => capability === null || !capabilities || capabilities.includes(capability);
let capabilities = null;

function knowCapabilities(listed) {
  capabilities = listed;
  for (const each of panels.values()) each.root.hidden = each.item.hidden = !can(each.needs);
}

/** A page of a long list, and the buttons that turn to the previous and the next page. */
class Pager {
  constructor() {
    this.pages = [""];  // where each page up to the current one begins
    onRestart.push(() => this.turn());
    this.previous = button("Previous", () => this.turn(this.pages.slice(0, -1)));
    this.next = button("Next", () => this.turn([...this.pages, this.following]));
    this.root = element("div", { className: "buttons" }, this.previous, this.next);
  }

  get after() {
    return this.pages.at(-1);
  }

  turn(pages = [""]) {
    this.pages = pages;
    lookSoon(0);
  }

  /** Takes the length of the current page and where the next begins, if there is one; returns the range as text. */
  show(length, following) {
    const from = (this.pages.length - 1) * LISTED;
    this.following = following;
    this.previous.disabled = this.pages.length === 1;
    this.next.disabled = following === null;
    return `${number(from + 1)} to ${number(from + length)}`;
  }
}

/** Replaces the contents of an element, unless they would be the same. */
function refill(place, known, make) {
  const text = JSON.stringify(known);
  if (place.dataset.known === text) return;
  place.dataset.known = text;
  place.replaceChildren(...make());
}

const showFacts = (place, rows) => refill(place, rows, () => [pairs(rows)]);

const SAID_MS = 15000;

/** Shows above all panels, or in the drawer if it is open, what was done, for a while, or what failed. */
function say(text, isProblem = false) {
  const place = drawer.open ? drawerSaid : byId("said"), shown = plain(text);
  place.classList.toggle("problem", isProblem);
  put(place, shown);
  if (!isProblem) setTimeout(() => { if (place.textContent === shown) put(place, ""); }, SAID_MS);
}

/** Changes something at the server, shows how that went, and looks again. Returns whether it was done. */
async function act(doing, done) {
  const answer = await trying(doing);
  if (answer === undefined) return false;
  say(done(answer));
  lookSoon(0);
  return true;
}

// Panels: the parts of the page, each of one script.

const yes = (value) => value ? "yes" : "no";
const clock = (ms) => {
  const when = new Date(ms);
  return `${when.toLocaleTimeString("en-GB")}.${String(when.getMilliseconds()).padStart(3, "0")}`;
};
const main = byId("main");
const panels = new Map();

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
      await look();
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

/** What the server can do: null until it is known, and for a server that does not list it. */
let capabilities = null;

/** Whether the server can do something; one that does not list its capabilities can do everything. */
const can = (capability) => capability === null || capabilities === null || capabilities.includes(capability);

function knowCapabilities(listed) {
  capabilities = Array.isArray(listed) ? listed : null;
  for (const each of panels.values()) each.root.hidden = each.item.hidden = !can(each.needs);
}

const active = () => Array.from(panels.values()).filter((panel) => panel.isActive());

// --- doing --------------------------------------------------------------------------------------------------------

const SAID_MS = 15000;
let saidTimer = 0;

/** Shows above all panels what was done, for a while, or what failed. */
function say(text, isProblem = false) {
  const place = byId("said");
  place.classList.toggle("problem", isProblem);
  put(place, plain(text));
  clearTimeout(saidTimer);
  if (!isProblem) saidTimer = setTimeout(() => put(place, ""), SAID_MS);
}

/** Changes something at the server, shows how that went, and looks again. Returns whether it was done. */
async function act(doing, done) {
  try {
    const answer = await doing();
    say(done(answer));
  } catch (error) {
    say(error.message, true);
    return false;
  }
  lookSoon(0);
  return true;
}

// What the panels of streams, reader groups and tables have in common: a scope is chosen, then one of its things.

const LISTED = 50;

/** Offers the scopes of the server; returns the chosen one, or null if there are none. */
async function lookAtScopes(select) {
  const { scopes, next } = await ask("GET", "/v1/scopes", { query: { limit: 500 } });
  const known = JSON.stringify(scopes);
  if (select.dataset.known !== known) {
    const before = select.value;
    select.replaceChildren(...scopes.map((value) => element("option", { value }, plain(value))));
    select.value = scopes.includes(before) ? before : scopes.find((each) => !each.startsWith("_")) ?? scopes[0] ?? "";
    select.dataset.known = known;
  }
  select.title = next === null ? "" : "The first 500 scopes.";
  return scopes.length ? select.value : null;
}

/**
 * Adds a panel that lists things of a scope, and shows the one that is chosen below the list.
 *
 * list: (scope, after) → a page; rowsOf: the items of a page; nameOf: the name of an item; columns: as for `fill`.
 * show: requests and shows a chosen thing, (scope, name); chosen: called before another one is shown. body: elements in
 * which it does. controls: more controls of the form.
 */
function addContentsPanel(
  { id, title, one, open = null, list, rowsOf, nameOf, columns, show, chosen, body, controls },
) {
  const select = element("select", { name: "scope" }), table = grid(title);
  const previous = button("Previous", () => turn(pages.slice(0, -1)));
  const next = button("Next", () => turn([...pages, after]));
  const form = element("form", { role: "search", ariaLabel: title },
    element("label", null, "Scope", select), ...controls ?? [],
    element("div", { className: "buttons" }, previous, next));
  const heading = element("h3", { tabIndex: -1 }), problem = element("p", { className: "problem", role: "status" });
  const inside = element("div", null, ...body);
  const detail = element("section", { className: "detail", hidden: true },
    element("div", { className: "heading" }, heading, button("Close", () => choose(null))), problem, inside);
  let pages = [""], after = "", name = null;

  function turn(to) {
    pages = to;
    lookSoon(0);
  }
  function choose(wanted) {
    const row = Array.from(table.querySelectorAll("tbody tr")).find((each) => nameOf(each.shown) === name);
    name = wanted;
    detail.hidden = name === null;
    if (name === null) row?.querySelector("button")?.focus();
    else {
      put(heading, plain(`${one} ${select.value}/${name}`));
      put(problem, "");
      inside.hidden = true;
      chosen();
      heading.focus();
    }
    lookSoon(0);
  }
  async function showChosen(scope) {
    const wanted = name;
    try {
      await show(scope, wanted, () => name === wanted && select.value === scope);
      put(problem, "");
      inside.hidden = false;
    } catch (error) {
      if (!(error instanceof Refused) || error instanceof Locked) throw error;
      put(problem, plain(error.message));
    }
  }
  async function look() {
    const scope = await lookAtScopes(select), asked = pages;
    const page = scope === null ? null : await list(scope, asked.at(-1));
    if (asked !== pages || (scope !== null && select.value !== scope)) return;
    const items = page === null ? [] : rowsOf(page);
    const classOf = (item) => nameOf(item) === name ? "chosen" : "";
    fill(table, columns, items, nameOf, { classOf, act: (item) => choose(nameOf(item)) });
    const from = (asked.length - 1) * LISTED;
    panel.note(items.length ? `${number(from + 1)} to ${number(from + items.length)}, by name.`
      : scope === null ? "There are no scopes." : "There are none.");
    previous.disabled = asked.length === 1;
    next.disabled = !page?.next;
    after = page?.next ?? "";
    if (scope !== null && name !== null) await showChosen(scope);
  }
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", () => {
    if (name !== null) choose(null);
    turn([""]);
  });
  const panel = addPanel({ id, title, tools: form, body: [table, detail], needs: "controller", open, look });
  onRestart.push(() => {
    name = null;
    detail.hidden = true;
    turn([""]);
  });
  return panel;
}

const subsection = (title, ...content) => element("div", { className: "part" }, element("h4", null, title), ...content);
const oneLine = (text) => text.replace(/\s*\n\s*/g, " ");

/** A time span, such as 12 s. */
const span = (ms) => ms === null ? "" : ms < 10000 ? `${number(ms)} ms` : `${number(Math.round(ms / 1000))} s`;

/** Replaces the contents of an element, unless they would be the same. */
function refill(place, known, make) {
  const text = JSON.stringify(known);
  if (place.dataset.known === text) return;
  place.dataset.known = text;
  place.replaceChildren(...make());
}

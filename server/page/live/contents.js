// What the panels of streams, reader groups and tables have in common: a scope is chosen, then one of its things.

/** Offers the scopes of the server; returns the chosen one, or null if there are none. */
async function lookAtScopes(select) {
  const { scopes, next } = await ask("GET", "/v1/scopes", { query: { limit: 500 } });
  const before = select.value;
  refill(select, scopes, () => scopes.map((value) => element("option", { value }, plain(value))));
  select.value = scopes.includes(before) ? before : scopes.find((each) => !each.startsWith("_")) ?? scopes[0] ?? "";
  select.title = next === null ? "" : "The first 500 scopes.";
  return scopes.length ? select.value : null;
}

/**
 * Adds a panel that lists things of a scope, and shows the one that is chosen below the list.
 *
 * id: the name of the resource, of which the name of a thing is the singular. one: what a thing is called. columns: as
 * for `fill`. query: more of the list's query. factsOf: the facts of a thing, as for `pairs`; show: shows the rest,
 * called with the thing, its scope and name, and a function that returns whether it is still the chosen one. chosen:
 * called before another one is shown. body: elements in which it is. controls: more controls of the form.
 */
function addContentsPanel(
  { id, title, one, open = null, query = () => ({}), columns, factsOf, show, chosen = () => {}, body, controls = [] },
) {
  const select = element("select", { name: "scope" }), table = grid(title), pager = new Pager();
  const singular = id.slice(0, -1), nameOf = (item) => item[singular];
  const form = element("form", { role: "search", ariaLabel: title },
    element("label", null, "Scope", select), ...controls, pager.root);
  const heading = element("h3", { tabIndex: -1 }), problem = element("p", { className: "problem", role: "status" });
  const facts = element("div"), inside = element("div", null, facts, ...body);
  const detail = element("section", { className: "detail", hidden: true },
    element("div", { className: "heading" }, heading, button("Close", () => choose(null))), problem, inside);
  let name = null;

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
    const wanted = name, parts = { scope, [singular]: wanted };
    const isWanted = () => name === wanted && select.value === scope;
    try {
      const it = await ask("GET", `/v1/${id}/{scope}/{${singular}}`, { parts });
      if (isWanted()) showFacts(facts, factsOf(it));
      await show(it, parts, isWanted);
      put(problem, "");
      inside.hidden = false;
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      put(problem, plain(error.message));
    }
  }
  async function look() {
    const scope = await lookAtScopes(select), asked = pager.pages;
    const page = scope === null ? { [id]: [], next: null } : await ask("GET", `/v1/${id}/{scope}`,
      { parts: { scope }, query: { after: pager.after, limit: LISTED, ...query() } });
    if (asked !== pager.pages || (scope !== null && select.value !== scope)) return;
    const items = page[id], classOf = (item) => nameOf(item) === name ? "chosen" : "";
    fill(table, columns, items, nameOf, { classOf, act: (item) => choose(nameOf(item)) });
    const range = pager.show(items.length, page.next);
    panel.note(items.length ? `${range}, by name.` : scope === null ? "There are no scopes." : "There are none.");
    if (scope !== null && name !== null) await showChosen(scope);
  }
  onSubmit(form);
  form.addEventListener("change", () => {
    if (name !== null) choose(null);
    pager.turn();
  });
  const panel = addPanel({ id, title, tools: form, body: [table, detail], needs: "controller", open, look });
  onRestart.push(() => {
    name = null;
    detail.hidden = true;
  });
}

const subsection = (title, ...content) => element("div", null, element("h4", null, title), ...content);
const oneLine = (text) => text.replace(/\s*\n\s*/g, " ");

const span = (ms) => ms === null ? "" : ms < 10000 ? `${number(ms)} ms` : `${number(Math.round(ms / 1000))} s`;

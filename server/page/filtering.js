// The field for a filter. An error that names a column is pointed at.

const filterInput = element("input", { className: "long", name: "filter", autocomplete: "off", spellcheck: false });
const filterCaret = element("pre", { className: "caret", hidden: true });
const filterTools = element("div", { className: "buttons" }, element("button", { className: "main" }, "Filter"));
const filterForm = element("form", { role: "search", ariaLabel: "Requests" },
  element("label", { className: "grow" },
    element("span", null, "Filter, such as ", element("code", null, 'type = READ_SEGMENT and segment ~ "scope/*"')),
    filterInput),
  filterTools);

/** Marks the column of a filter that an error names. */
function pointAt(text, problem) {
  const column = /column (\d+)/.exec(problem)?.[1];
  filterInput.ariaInvalid = problem ? "true" : null;
  filterCaret.hidden = column === undefined;
  if (column === undefined) return;
  const from = Math.max(0, column - 41), before = (from ? "…" : "") + plain(text.slice(from, column - 1));
  put(filterCaret, `${before}${plain(text.slice(column - 1, from + 80))}\n${" ".repeat(before.length)}^`);
}

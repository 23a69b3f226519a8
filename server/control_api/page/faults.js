// The panel of fault rules.

const faultsTable = grid("Rules of faults");
const WORDS = ["close", "close after", "hold", "hold after", "drop", "drop reply", "duplicate", "duplicate reply",
  "WrongHost", "NoSuchSegment", "SegmentIsSealed", '{"delay_ms": 500}'];
const ruleForm = element("form", null,
  element("label", null, "Requests or replies that match",
    element("input", { className: "long", name: "match", autocomplete: "off", spellcheck: false, placeholder: "type = APPEND_BLOCK_END" })),
  element("label", null, "Do",
    element("input", { name: "do", list: "deeds", required: true, autocomplete: "off", spellcheck: false, placeholder: "close after" })),
  element("label", null, "On", element("select", { name: "on" }, element("option", null, "request"), element("option", null, "reply"))),
  element("label", null, "Only the nth", element("input", { className: "short", name: "nth", type: "number", min: "1" })),
  element("label", null, "At most times", element("input", { className: "short", name: "times", type: "number", min: "1" })),
  element("label", null, "Name", element("input", { name: "name", autocomplete: "off", spellcheck: false })),
  element("button", null, "Add rule"),
  element("datalist", { id: "deeds" }, ...WORDS.map((value) => element("option", { value }))));

const faultsPanel = addPanel({
  id: "faults",
  title: "Faults",
  tools: ruleForm,
  body: [faultsTable],
  needs: "faults",
  async look() {
    const it = await ask("GET", "/v1/faults");
    faultsPanel.count(number(it.rules.length));
    faultsPanel.note("");
    fill(faultsTable, [
      ["Rule", (each) => each.name, "w"],
      ["When", (each) => when(each.rule), "w"],
      ["Do", (each) => each.rule.do.map((deed) => JSON.stringify(deed)).join(", then "), "w"],
      ["Matched", (each) => number(each.matched), "n"],
      ["Fired", (each) => number(each.fired), "n"],
      ["Holds", (each) => number(each.held), "n"],
      ["", (each, cell) => put(cell.children[0], each.enabled ? "Disable" : "Enable"), "",
        [rowButton("Disable", turn), rowButton("Release", release), rowButton("Remove", remove)]],
    ], it.rules, (each) => each.name);
  },
});

function when(rule) {
  const usual = { on: "request", store: null, each: null, skip: 0, every: 1, probability: 1, times: null };
  const parts = [rule.match || (rule.on === "reply" ? "all replies" : "all requests")];
  for (const [name, value] of Object.entries(usual)) if (rule[name] !== value) parts.push(`${name} ${rule[name]}`);
  if (rule.nth.length) parts.push(`nth ${rule.nth.join(", ")}`);
  return parts.join("; ");
}

const turn = (each) => each.enabled
  ? act(() => ask("POST", "/v1/faults/{name}/disable", { parts: each }), () => `${each.name} was disabled.`)
  : act(() => ask("POST", "/v1/faults/{name}/enable", { parts: each }), () => `${each.name} was enabled.`);

const release = (each) => act(() => ask("POST", "/v1/faults/{name}/release", { parts: each }),
  (answer) => `${each.name} released ${answer.released}.`);

const remove = (each) => act(() => ask("DELETE", "/v1/faults/{name}", { parts: each }),
  () => `${each.name} was removed.`);

ruleForm.addEventListener("submit", async (event) => {
  event.preventDefault();
  const given = ruleForm.elements, rule = { on: given.on.value };
  for (const name of ["match", "name"]) if (given[name].value.trim()) rule[name] = given[name].value;
  for (const name of ["nth", "times"]) if (given[name].value) rule[name] = Number(given[name].value);
  rule.do = given.do.value.trim();
  try {
    if (/^[[{]/.test(rule.do)) rule.do = JSON.parse(rule.do);
  } catch (error) {
    say(`The action is not JSON: ${error.message}`, true);
    return;
  }
  if (await act(() => ask("POST", "/v1/faults", { body: rule }), (answer) => `${answer.name} was added.`)) ruleForm.reset();
});

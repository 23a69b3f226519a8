// The panel of fault rules, with a form for all fields of a rule.

const newRule = button("New rule", () => openRule());
const ruleForm = new Editor(newRule, {
  parts: () => [...ruleForm.fields.fields,
    ...ruleForm.actions.flatMap((action, index) => action.parts(`do[${index}]`))],
  async send() {
    const { actions, fields, replaced } = ruleForm, chosen = actions.map((action) => action.chosen.get());
    const body = { ...fields.get(), do: chosen.length === 1 ? chosen[0] : chosen };
    const { name } = replaced === null ? await ask("POST", "/v1/faults", { body })
      : await ask("PUT", "/v1/faults/{name}", { parts: { name: replaced }, body });
    return `${name} was ${replaced === null ? "added" : "replaced"}.`;
  },
});
const actionsList = element("ol", { className: "actions" });

/** Opens the form of a rule. rule: its values. replaced: the name of the rule that it replaces; null for a new one. */
const openRule = (rule = {}, replaced = null) => opening((all) => {
  const [ok, ...others] = modelsIn(all, all.Rule.properties.do, (model) => Object.keys(model.properties)[0]);
  const fields = new Fields(all.Rule, { without: ["do"], values: rule });
  Object.assign(ruleForm, { replaced, fields, models: [...others, ok], actions: [] });
  actionsList.replaceChildren();
  for (const action of rule.do ?? [{}]) addAction(action);
  ruleForm.open(replaced === null ? "New rule" : `Rule ${replaced}`, replaced === null ? "Add rule" : "Replace rule",
    fields.root, element("h4", null, "Actions: one each time the rule fires, in this order"), actionsList,
    element("div", { className: "buttons" }, button("Another action", () => addAction())));
});

function addAction(values = {}) {
  const { actions, models } = ruleForm, model = models.find(([key]) => key in values);
  const choice = new Choice("do", models, model, values);
  const item = element("li", null, choice.root, button("Remove", () => {
    actions.splice(actions.indexOf(choice), 1);
    item.remove();
    ruleForm.submit.focus();
  }));
  actions.push(choice);
  actionsList.append(item);
}

addTable({
  id: "faults",
  title: "Fault rules",
  tools: element("div", null, element("div", { className: "buttons" }, newRule), ruleForm.root),
  needs: "faults",
  columns: [
    ["Rule", (each) => each.name, "w"],
    ["When", ({ rule: { name, match, do: _, ...others } }) =>
      [match || "all", settingsText(others)].filter(Boolean).join("; "), "w"],
    ["Do", (each) => each.rule.do.map(settingsText).join(", then "), "w"],
    ["Matched", (each) => number(each.matched), "n"],
    ["Fired", (each) => number(each.fired), "n"],
    ["Holds", (each) => number(each.held), "n"],
    ["Actions", showButtons, "buttons", [
      change("Release", "POST", "/v1/faults/{name}/release", ({ name }, it) => `${name} released ${it.released}.`),
      rowButton("Disable", turn), rowButton("Edit", edit),
      change("Remove", "DELETE", "/v1/faults/{name}", (each) => `${each.name} was removed.`),
    ]],
  ],
  keyOf: (each) => each.name,
  classOf: (each) => each.enabled ? "" : "off",
  async rows({ count }) {
    const { rules } = await ask("GET", "/v1/faults");
    count(number(rules.length));
    return rules;
  },
});

function showButtons(each, cell) {
  const [releasing, turning, editing] = cell.children;
  releasing.hidden = !each.held;
  put(turning, each.enabled ? "Disable" : "Enable");
  editing.hidden = each.rule.do.some((action) => "call" in action);  // a function in the server's process
}

const USUAL = { on: "request", store: null, each: null, nth: [], skip: 0, every: 1, probability: 1, times: null,
  at: "before", fields: {}, overtake: false, details: "", reply_bytes: 0, reset: false, toxicity: 1 };
const UNITS = { latency: "ms", jitter: "ms", rate: "KB/s", timeout: "ms", average_size: "bytes", bytes: "bytes",
  delay_ms: "ms" };

/** The values of a rule, an action or a toxic as text, without the usual ones. */
function settingsText(settings) {
  return Object.entries(settings).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(USUAL[name]))
    .map(([name, value]) => {
      const text = typeof value === "string" ? value : JSON.stringify(value);
      return [spaced(name.replace(/_ms$/, "")), text, UNITS[name]].filter(Boolean).join(" ");
    }).join(", ");
}

function edit({ name, rule }) {
  const isStack = rule.do.length > 1 && rule.times === rule.do.length;  // then `times` follows from the actions
  openRule(isStack ? { ...rule, times: null } : rule, name);
}

function turn(each) {
  return each.enabled
    ? act(() => ask("POST", "/v1/faults/{name}/disable", { parts: each }), () => `${each.name} was disabled.`)
    : act(() => ask("POST", "/v1/faults/{name}/enable", { parts: each }), () => `${each.name} was enabled.`);
}

// The panel of fault rules, with a form for all fields of a rule.

/** The form of a rule. It is filled when it is opened, from the schemas. */
class RuleForm extends Editor {
  constructor(opener) {
    const conditions = element("div"), list = element("ol", { className: "actions" });
    super(element("div", null, conditions, element("h4", null, "Actions: one each time the rule fires, in this order"),
      list, element("div", { className: "buttons" }, button("Another action", () => this.addAction()))), opener);
    Object.assign(this, { conditions, list, actions: [] });
  }

  /** Opens the form. rule: its values. replaced: the name of the rule that it replaces; null for a new one. */
  edit(all, rule, replaced) {
    const models = modelsIn(all, all.Rule.properties.do, (model) => Object.keys(model.properties)[0]);
    const [ok, ...others] = models, fields = new Fields(all.Rule, { without: ["do"], values: rule });
    Object.assign(this, { replaced, fields, models: [...others, ok], actions: [] });
    this.conditions.replaceChildren(this.fields.root);
    this.list.replaceChildren();
    for (const action of rule.do ?? [{}]) this.addAction(action);
    this.open(replaced === null ? "New rule" : `Rule ${replaced}`, replaced === null ? "Add rule" : "Replace rule");
  }

  parts() {
    return [...this.fields.fields, ...this.actions.flatMap((action, index) => action.parts(`do[${index}]`))];
  }

  addAction(values = {}) {
    const choice = new Choice(this.models, "do"), known = this.models.find(([key]) => key in values);
    if (known) choice.choose(known[0], values);
    const item = element("li", null, choice.root, button("Remove", () => {
      this.actions.splice(this.actions.indexOf(choice), 1);
      item.remove();
      this.submit.focus();
    }));
    this.actions.push(choice);
    this.list.append(item);
  }

  async send() {
    const actions = this.actions.map((action) => action.chosen.get());
    const body = { ...this.fields.get(), do: actions.length === 1 ? actions[0] : actions };
    const answer = this.replaced === null ? await ask("POST", "/v1/faults", { body })
      : await ask("PUT", "/v1/faults/{name}", { parts: { name: this.replaced }, body });
    return `${answer.name} was ${this.replaced === null ? "added" : "replaced"}.`;
  }
}

const newRule = button("New rule", () => openRule());
const ruleForm = new RuleForm(newRule);
const openRule = (rule = {}, replaced = null) => opening((all) => ruleForm.edit(all, rule, replaced));

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
      change("Release", "POST", "/v1/faults/{name}/release", (each, { released }) => `${each.name} released ${released}.`),
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
const UNITS = { latency: "ms", jitter: "ms", rate: "KB/s", timeout: "ms", average_size: "bytes", bytes: "bytes" };

/** The values of a rule, an action or a toxic as text, without the usual ones. */
function settingsText(settings) {
  return Object.entries(settings).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(USUAL[name]))
    .map(([name, value]) => {
      const text = typeof value === "string" ? value : JSON.stringify(value);
      return [spaced(name), text, UNITS[name]].filter(Boolean).join(" ");
    }).join(", ");
}

function edit({ name, rule }) {
  const isStack = rule.do.length > 1 && rule.times === rule.do.length;  // then `times` follows from the actions
  return openRule(isStack ? { ...rule, times: null } : rule, name);
}

function turn(each) {
  return each.enabled
    ? act(() => ask("POST", "/v1/faults/{name}/disable", { parts: each }), () => `${each.name} was disabled.`)
    : act(() => ask("POST", "/v1/faults/{name}/enable", { parts: each }), () => `${each.name} was enabled.`);
}

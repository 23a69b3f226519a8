// The panel of fault rules, with a form for all fields of a rule.

const REPLIES = ["WrongHost", "NoSuchSegment", "SegmentIsSealed", "SegmentIsTruncated", "SegmentAlreadyExists",
  "ConditionalCheckFailed", "InvalidEventNumber", "AuthTokenCheckFailed", "OperationUnsupported", "ErrorMessage"];
const STATUSES = ["UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED", "PERMISSION_DENIED",
  "INTERNAL", "ABORTED", "NOT_FOUND"];
const AT = { at: { label: "When" } }, OVERTAKE = { overtake: { label: "Later traffic may overtake" } };
const ACTIONS = {  // by the model's name: its label, and those of its fields
  Error: ["answer with an error",
    { error: { label: "Reply", suggestions: REPLIES }, fields: { label: "Fields, as JSON" }, ...AT }],
  Delay: ["delay", { delay_ms: { label: "Delay, ms", begins: 100 }, ...OVERTAKE, ...AT }],
  Hold: ["hold until released", { hold: { label: "When" }, ...OVERTAKE }],
  Drop: ["drop", { drop: { label: "What" } }],
  Duplicate: ["duplicate", { duplicate: { label: "What" } }],
  Corrupt: ["change a byte of the reply",
    { corrupt: { label: "Position", begins: 0 }, xor: { label: "Exclusive or with" } }],
  Truncate: ["cut the reply", { truncate: { label: "After bytes", begins: 0 } }],
  Close: ["close the connection",
    { close: { label: "When" }, reply_bytes: { label: "After bytes of the reply" }, reset: { label: "Reset" } }],
  Status: ["end a call with a status",
    { status: { label: "Status", suggestions: STATUSES }, details: { label: "Details" }, ...AT }],
  Answer: ["change the answer of a call", { answer: { label: "Fields, as JSON", begins: {} }, ...AT }],
  Ok: ["nothing", {}],
};
const CONDITIONS = {  // the fields of a rule beside its actions
  match: {
    label: "Requests or replies that match; empty for all", className: "wide", placeholder: "type = READ_SEGMENT",
  },
  name: { label: "Name", placeholder: "rule N" },
  on: { label: "Match requests or replies" },
  nth: { label: "Only these matches", placeholder: "3, or 1, 4" },
  skip: { label: "Skip the first" },
  every: { label: "Of the rest, only every Nth" },
  probability: { label: "Probability" },
  times: { label: "At most N times", placeholder: "unlimited" },
  each: { label: "Count separately for each" },
  store: { label: "Only store", placeholder: "all" },
};

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
    const order = Object.keys(ACTIONS), { do: actions, ...others } = all.Rule.properties;
    this.replaced = replaced;
    this.models = modelsIn(all, actions).map((schema) => {
      const [label, options] = ACTIONS[schema.title] ?? [schema.title, {}];
      return [Object.keys(schema.properties)[0], label, schema, options];
    }).sort(([, , one], [, , other]) => order.indexOf(one.title) - order.indexOf(other.title));
    const names = new Set([...Object.keys(CONDITIONS), ...Object.keys(others)]);
    this.fields = new Fields(all.Rule, { options: CONDITIONS, names });
    this.fields.set(rule);
    this.conditions.replaceChildren(this.fields.root);
    this.actions = [];
    this.list.replaceChildren();
    for (const action of rule.do ?? [{}]) this.addAction(action);
    this.open(replaced === null ? "New rule" : `Rule ${replaced}`, replaced === null ? "Add rule" : "Replace rule");
  }

  parts() {
    return [...this.fields.fields.values(), ...this.actions.flatMap((action) => action.parts())];
  }

  addAction(values = {}) {
    const choice = new Choice(this.models, `do[${this.actions.length}]`, "Do");
    const known = this.models.find(([key]) => key in values);
    if (known) choice.choose(known[0], values);
    const item = element("li", null, choice.root, button("Remove", () => this.removeAction(choice, item)));
    this.actions.push(choice);
    this.list.append(item);
  }

  removeAction(choice, item) {
    this.actions.splice(this.actions.indexOf(choice), 1);
    item.remove();
    this.actions.forEach((action, index) => action.move(`do[${index}]`));
    this.submit.focus();
  }

  async send() {
    const actions = this.actions.map((action) => action.get());
    const body = { ...this.fields.get(), do: actions.length === 1 ? actions[0] : actions };
    const answer = this.replaced === null ? await ask("POST", "/v1/faults", { body })
      : await ask("PUT", "/v1/faults/{name}", { parts: { name: this.replaced }, body });
    return `${answer.name} was ${this.replaced === null ? "added" : "replaced"}.`;
  }
}

const newRule = button("New rule", () => openRule());
const ruleForm = new RuleForm(newRule);
const faultsTable = grid("Fault rules", "cards");
const openRule = (rule = {}, replaced = null) => opening((all) => ruleForm.edit(all, rule, replaced));

const faultsPanel = addPanel({
  id: "faults",
  title: "Faults",
  tools: element("div", { className: "tools" }, element("div", { className: "buttons" }, newRule), ruleForm.root),
  body: [faultsTable],
  needs: "faults",
  async look() {
    const it = await ask("GET", "/v1/faults");
    faultsPanel.count(number(it.rules.length));
    faultsPanel.note("");
    fill(faultsTable, [
      ["Rule", (each) => each.name, "w"],
      ["When", (each) => when(each.rule), "w"],
      ["Do", (each) => each.rule.do.map(deed).join(", then "), "w"],
      ["Matched", (each) => number(each.matched), "n"],
      ["Fired", (each) => number(each.fired), "n"],
      ["Holds", (each) => number(each.held), "n"],
      ["Actions", showButtons, "buttons", [
        rowButton("Release", release), rowButton("Disable", turn),
        rowButton("Edit", edit), rowButton("Remove", remove),
      ]],
    ], it.rules, (each) => each.name, { classOf: (each) => each.enabled ? "" : "off" });
  },
});

function showButtons(each, cell) {
  const [releasing, turning, editing] = cell.children;
  releasing.hidden = !each.held;
  put(turning, each.enabled ? "Disable" : "Enable");
  editing.hidden = each.rule.do.some((deed) => "call" in deed);  // a function in the server's process
}

const USUAL = { on: "request", store: null, each: null, skip: 0, every: 1, probability: 1, times: null };

/** When a rule fires, as text. */
function when(rule) {
  const parts = [rule.match || (rule.on === "reply" ? "all replies" : "all requests")];
  for (const [name, value] of Object.entries(USUAL)) if (rule[name] !== value) parts.push(`${name} ${rule[name]}`);
  if (rule.nth.length) parts.push(`nth ${rule.nth.join(", ")}`);
  return parts.join("; ");
}

/** An action as text: its key and value, and what else it has. */
function deed(action) {
  const [[key, value], ...rest] = Object.entries(action);
  const isBefore = (name, each) => name === "at" && each === "before" && key !== "answer";
  const isUsual = (name, each) => !each || JSON.stringify(each) === "{}" || isBefore(name, each);
  const others = rest.filter(([name, each]) => !isUsual(name, each));
  const said = (each) => typeof each === "object" ? JSON.stringify(each) : String(each);
  const isTime = key.endsWith("_ms"), name = isTime ? key.slice(0, -3) : key.replaceAll("_", " ");
  const main = value === true ? name : `${name} ${said(value)}${isTime ? " ms" : ""}`;
  return [main, ...others.map(([name, each]) => `${name.replaceAll("_", " ")} ${said(each)}`)].join(", ");
}

function edit({ name, rule }) {
  const isStack = rule.do.length > 1 && rule.times === rule.do.length;  // then `times` follows from the actions
  return openRule(isStack ? { ...rule, times: null } : rule, name);
}

const turn = (each) => each.enabled
  ? act(() => ask("POST", "/v1/faults/{name}/disable", { parts: each }), () => `${each.name} was disabled.`)
  : act(() => ask("POST", "/v1/faults/{name}/enable", { parts: each }), () => `${each.name} was enabled.`);

const release = (each) => act(() => ask("POST", "/v1/faults/{name}/release", { parts: each }),
  (answer) => `${each.name} released ${answer.released}.`);

const remove = (each) => act(() => ask("DELETE", "/v1/faults/{name}", { parts: each }),
  () => `${each.name} was removed.`);

// The panel of fault rules, with a form for all fields of a rule.

const REPLIES = ["WrongHost", "NoSuchSegment", "SegmentIsSealed", "SegmentIsTruncated", "SegmentAlreadyExists",
  "ConditionalCheckFailed", "InvalidEventNumber", "AuthTokenCheckFailed", "OperationUnsupported", "ErrorMessage"];
const STATUSES = ["UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED", "PERMISSION_DENIED",
  "INTERNAL", "ABORTED", "NOT_FOUND"];
const AT = { at: { label: "When" } };
const ACTIONS = {  // by the model's name: its label, and those of its fields
  Error: ["answer with an error",
    { error: { label: "Reply", suggestions: REPLIES }, fields: { label: "Fields, as JSON" }, ...AT }],
  Delay: ["delay", { delay_ms: { label: "Delay, ms" }, overtake: { label: "Later traffic may overtake" }, ...AT }],
  Hold: ["hold until released", { hold: { label: "When" }, overtake: { label: "Later traffic may overtake" } }],
  Drop: ["drop", { drop: { label: "What" } }],
  Duplicate: ["duplicate", { duplicate: { label: "What" } }],
  Corrupt: ["change a byte of the reply", { corrupt: { label: "Position" }, xor: { label: "Exclusive or with" } }],
  Truncate: ["cut the reply", { truncate: { label: "After bytes" } }],
  Close: ["close the connection",
    { close: { label: "When" }, reply_bytes: { label: "After bytes of the reply" }, reset: { label: "Reset" } }],
  Status: ["end a call with a status",
    { status: { label: "Status", suggestions: STATUSES }, details: { label: "Details" }, ...AT }],
  Answer: ["change the answer of a call", { answer: { label: "Fields, as JSON" }, ...AT }],
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

/** The form of a rule. It is made when it is first opened, from the schemas. */
class RuleForm {
  constructor() {
    this.rest = element("p", { className: "problem", role: "alert" });
    this.heading = element("h3");
    this.conditions = element("div");
    this.list = element("ol", { className: "actions" });
    this.submit = element("button", { className: "main" });
    const listHeading = element("h4", null, "Actions: one each time the rule fires, in this order");
    this.root = element("form", { className: "editor", hidden: true, noValidate: true },
      this.heading, this.conditions, listHeading, this.list,
      element("div", { className: "buttons" }, button("Another action", () => this.addAction())), this.rest,
      element("div", { className: "buttons" }, this.submit, button("Cancel", () => this.close())));
    this.root.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.root.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.close();
    });
    this.actions = [];
  }

  /** Opens the form. rule: its values. replaced: the name of the rule that it replaces; null for a new one. */
  async open(rule = {}, replaced = null) {
    this.opener = document.activeElement;
    this.replaced = replaced;
    const all = await schemas(), union = modelsIn(all.Rule.properties.do);
    this.models = union.map((each) => referred(all, each)).map((schema) => {
      const [label, options] = ACTIONS[schema.title] ?? [schema.title, {}];
      return [Object.keys(schema.properties)[0], label, schema, options];
    });
    const order = Object.keys(ACTIONS).map((each) => ACTIONS[each][0]);
    this.models.sort((one, other) => order.indexOf(one[1]) - order.indexOf(other[1]));
    const names = new Set([...Object.keys(CONDITIONS), ...Object.keys(all.Rule.properties)]);
    names.delete("do");
    this.fields = new Fields(all.Rule, { options: CONDITIONS, names });
    this.fields.set(rule);
    this.conditions.replaceChildren(this.fields.root);
    this.actions = [];
    this.list.replaceChildren();
    for (const each of rule.do ?? [{}]) this.addAction(each);
    put(this.heading, replaced === null ? "New rule" : `Rule ${plain(replaced)}`);
    put(this.submit, replaced === null ? "Add rule" : "Replace rule");
    this.complain(null);
    this.root.hidden = false;
    faultsPanel.root.open = true;
    this.root.scrollIntoView({ block: "nearest" });
    this.fields.fields.get("match").input.focus();
  }

  close() {
    this.root.hidden = true;
    (this.opener?.isConnected && this.opener !== document.body ? this.opener : newRule).focus();
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
    this.actions.forEach((each, index) => each.move(`do[${index}]`));
    this.submit.focus();
  }

  /** Shows an error at its field; one of a whole action at its first one, or at those of the reply if it names one. */
  complain(error) {
    const action = this.actions.find((each) => error?.where === `body.${each.path}`);
    if (action) {
      const name = /^[A-Z_]+\.\w+: /.test(error.message) ? "fields" : action.chosen.fields.keys().next().value;
      error.where += `.${name}`;
    }
    complainAt([...this.fields.fields.values(), ...this.actions.flatMap((each) => each.all())], error, this.rest);
  }

  async send() {
    this.complain(null);
    try {
      const deeds = this.actions.map((each) => each.get());
      const rule = { ...this.fields.get(), do: deeds.length === 1 ? deeds[0] : deeds };
      const answer = this.replaced === null ? await ask("POST", "/v1/faults", { body: rule })
        : await ask("PUT", "/v1/faults/{name}", { parts: { name: this.replaced }, body: rule });
      say(`${answer.name} was ${this.replaced === null ? "added" : "replaced"}.`);
    } catch (error) {
      if (!(error instanceof Wrong || error instanceof Refused || error instanceof Gone)) throw error;
      this.complain({ message: error.message, where: error.where ?? "" });
      return;
    }
    this.close();
    lookSoon(0);
  }
}

const ruleForm = new RuleForm();
const newRule = button("New rule", () => openRule());
const faultsTable = grid("Fault rules", "cards");

/** Opens the form of a rule; failures to load it are shown above all panels. */
async function openRule(rule, replaced) {
  try {
    await ruleForm.open(rule, replaced);
  } catch (error) {
    if (!(error instanceof Refused || error instanceof Gone)) throw error;
    say(error.message, true);
  }
}

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
    ], it.rules, (each) => each.name, { isOff: (each) => !each.enabled });
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

// The panel of toxics, with a form for their attributes.

const TOXIC_FIELDS = {
  name: { label: "Name", placeholder: "its type and direction" },
  toxicity: { label: "Fraction of connections" },
  store: { label: "Only store", placeholder: "all" },
  stream: { label: "Direction" },
  latency: { label: "Latency, ms" },
  jitter: { label: "Jitter, ms" },
  distribution: { label: "Distribution" },
  rate: { label: "Rate, KB/s", begins: 64 },
  timeout: { label: "Timeout, ms", begins: 1000 },
  average_size: { label: "Average size, bytes", begins: 64 },
  size_variation: { label: "Variation of the size, bytes" },
  bytes: { label: "Bytes", begins: 1024 },
};
const DELAY_UNITS = { slow_close: "Delay, ms", slicer: "Delay, µs" };

/** The form of a toxic. It is filled when it is opened, from the schemas. */
class ToxicForm extends Editor {
  constructor(opener) {
    const area = element("div");
    super(area, opener);
    this.area = area;
  }

  edit(all) {
    const models = modelsIn(all, all.ActiveToxic.properties.toxic).map((schema) => {
      const type = schema.properties.type.const, delay = { delay: { label: DELAY_UNITS[type], begins: 100 } };
      return [type, type, schema, { ...TOXIC_FIELDS, ...delay }, ["stream", "toxicity", "store", "name"]];
    });
    this.choice = new Choice(models, "", "Type");
    this.area.replaceChildren(this.choice.root);
    this.open("New toxic", "Add toxic");
  }

  parts() {
    return this.choice.parts();
  }

  async send() {
    return `${(await ask("POST", "/v1/toxics", { body: this.choice.get() })).name} was added.`;
  }
}

const newToxic = button("New toxic", () => opening((all) => toxicForm.edit(all)));
const toxicForm = new ToxicForm(newToxic);
const toxicsTable = grid("Toxics", "cards");

const toxicsPanel = addPanel({
  id: "toxics",
  title: "Toxics",
  tools: element("div", { className: "tools" }, element("div", { className: "buttons" }, newToxic), toxicForm.root),
  body: [toxicsTable],
  needs: "toxics",
  async look() {
    const it = await ask("GET", "/v1/toxics");
    toxicsPanel.count(number(it.toxics.length));
    toxicsPanel.note("");
    fill(toxicsTable, [
      ["Toxic", (each) => each.name, "w"],
      ["Type", (each) => each.toxic.type],
      ["Direction", (each) => each.toxic.stream ?? "both"],
      ["Attributes", (each) => attributes(each.toxic), "w"],
      ["Connections", (each) => number(each.connections), "n"],
      ["Actions", null, "buttons", [rowButton("Remove", removeToxic)]],
    ], it.toxics, (each) => each.name);
  },
});

/** The attributes of a toxic as text, with those of all types if they are not as usual. */
function attributes({ type, name, stream, toxicity, store, ...own }) {
  const parts = Object.entries(own).map(([key, value]) => attribute(type, key, value));
  if (toxicity !== 1) parts.push(`toxicity ${toxicity}`);
  if (store !== null) parts.push(`store ${store}`);
  return parts.join(", ");
}

/** An attribute as text, with the unit of its label. */
function attribute(type, key, value) {
  const label = key === "delay" ? DELAY_UNITS[type] : TOXIC_FIELDS[key]?.label, unit = label?.split(", ")[1];
  return `${key.replaceAll("_", " ")} ${value}${unit ? ` ${unit}` : ""}`;
}

const removeToxic = (each) => act(() => ask("DELETE", "/v1/toxics/{name}", { parts: each }),
  () => `${each.name} was removed.`);

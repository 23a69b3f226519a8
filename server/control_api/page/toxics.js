// The panel of toxics, with a form for their attributes.

const TOXIC_FIELDS = {
  name: { label: "Name", placeholder: "its type and direction" },
  toxicity: { label: "Fraction of connections" },
  store: { label: "Only store", placeholder: "all" },
  stream: { label: "Direction" },
  latency: { label: "Latency, ms" },
  jitter: { label: "Jitter, ms" },
  distribution: { label: "Distribution" },
  rate: { label: "Rate, KB/s" },
  timeout: { label: "Timeout, ms" },
  average_size: { label: "Average size, bytes" },
  size_variation: { label: "Variation of the size, bytes" },
  bytes: { label: "Bytes" },
};
const DELAY_UNITS = { slow_close: "Delay, ms", slicer: "Delay, µs" };

const toxicProblem = element("p", { className: "problem", role: "alert" });
const toxicArea = element("div");
const toxicForm = element("form", { className: "editor", hidden: true, noValidate: true },
  element("h3", null, "New toxic"), toxicArea, toxicProblem,
  element("div", { className: "buttons" },
    element("button", { className: "main" }, "Add toxic"), button("Cancel", closeToxic)));
const newToxic = button("New toxic", openToxic);
const toxicsTable = grid("Toxics", "cards");
let toxicChoice = null;

const toxicsPanel = addPanel({
  id: "toxics",
  title: "Toxics",
  tools: element("div", { className: "tools" }, element("div", { className: "buttons" }, newToxic), toxicForm),
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

async function openToxic() {
  let all;
  try {
    all = await schemas();
  } catch (error) {
    if (!(error instanceof Refused || error instanceof Gone)) throw error;
    say(error.message, true);
    return;
  }
  const union = modelsIn(all.ActiveToxic.properties.toxic);
  const models = union.map((each) => referred(all, each)).map((schema) => {
    const type = schema.properties.type.const, delay = { delay: { label: DELAY_UNITS[type] } };
    return [type, type, schema, { ...TOXIC_FIELDS, ...delay }, ["stream", "toxicity", "store", "name"]];
  });
  toxicChoice = new Choice(models, "", "Type");
  toxicArea.replaceChildren(toxicChoice.root);
  put(toxicProblem, "");
  toxicForm.hidden = false;
  toxicChoice.select.focus();
}

function closeToxic() {
  toxicForm.hidden = true;
  newToxic.focus();
}

toxicForm.addEventListener("keydown", (event) => {
  if (event.key === "Escape") closeToxic();
});
toxicForm.addEventListener("submit", async (event) => {
  event.preventDefault();
  complainAt(toxicChoice.all(), null, toxicProblem);
  try {
    const answer = await ask("POST", "/v1/toxics", { body: toxicChoice.get() });
    say(`${answer.name} was added.`);
  } catch (error) {
    if (!(error instanceof Wrong || error instanceof Refused || error instanceof Gone)) throw error;
    complainAt(toxicChoice.all(), { message: error.message, where: error.where ?? "" }, toxicProblem);
    return;
  }
  closeToxic();
  lookSoon(0);
});

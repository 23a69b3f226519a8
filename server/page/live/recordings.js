// The panel of recordings: started, stopped, downloaded and deleted; and the download of the latest traffic.

const MIB = 2 ** 20;
const DOWNLOAD_MS = 600000;
const SAVING_MS = 60000;
const recordingName = element("input", { name: "name", maxLength: 100, pattern: "[^\\/]*",
  title: "A name without slashes", placeholder: "recording N", autocomplete: "off" });
const recordingLimit = element("input", { name: "limit", type: "number", min: "1", value: "64", required: true });
const downloadForm = element("select", { name: "form" }, element("option", { value: "wtrace" }, "capture (.wtrace)"),
  element("option", { value: "jsonl" }, "fixture (.jsonl)"));
const recordingsForm = element("form", null,
  element("label", null, "Name", recordingName),
  element("label", null, "Limit, MiB", recordingLimit),
  element("button", { className: "main" }, "Start recording"),
  element("label", null, "Download as", downloadForm),
  button("Download latest traffic", () => download("segstore", "/v1/trace")));

addTable({
  id: "recordings",
  title: "Recordings",
  tools: recordingsForm,
  needs: "recordings",
  columns: [
    ["Recording", (each) => each.name, "w"],
    ["State", (each) => each.problem || (each.running ? "running" : "stopped"), "w"],
    ["Started", (each) => clock(each.started_ms)],
    ["Stopped", (each) => each.stopped_ms === null ? "" : clock(each.stopped_ms)],
    ["Records", (each) => number(each.records), "n"],
    ["Bytes", (each) => number(each.size), "n"],
    ["Actions", (each, cell) => { cell.firstElementChild.hidden = !each.running; }, "buttons", [
      change("Stop", "POST", "/v1/recordings/{name}/stop", (each) => `${each.name} was stopped.`),
      rowButton("Download", (each) => download(each.name, "/v1/recordings/{name}/trace", each)),
      change("Delete", "DELETE", "/v1/recordings/{name}", (each) => `${each.name} was deleted.`),
    ]],
  ],
  keyOf: (each) => each.name,
  classOf: (each) => each.problem ? "bad" : "",
  async rows({ count, note }) {
    const { recordings } = await ask("GET", "/v1/recordings");
    count(number(recordings.length));
    note(recordings.length ? "Recordings are held in memory until they are deleted." : "");
    return recordings;
  },
});

onSubmit(recordingsForm, async () => {
  const body = { name: recordingName.value, max_bytes: Math.round(Number(recordingLimit.value) * MIB) };
  const start = () => ask("POST", "/v1/recordings", { body });
  if (await act(start, ({ name }) => `${name} was started.`)) recordingName.value = "";
});

/** Saves a trace as a file. It is fetched by the script, because a link would not send the token. */
function download(name, path, parts = {}) {
  const form = downloadForm.value, file = `${name}.${form}`;
  return act(async () => {
    const trace = await ask("GET", path, { parts, query: { form }, isFile: true, patience: DOWNLOAD_MS });
    const saving = element("a", { href: URL.createObjectURL(trace), download: file });
    saving.click();
    return setTimeout(() => URL.revokeObjectURL(saving.href), SAVING_MS); // some browsers read it only then
  }, () => `${file} was downloaded.`);
}

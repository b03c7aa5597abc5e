// What to do when there is nothing to show.

import { el } from "./dom.js";
import { formatCount } from "./format.js";
import { DEFAULTS } from "./state.js";

/** The tenant has nothing in this range. `received` is what all tenants ever pushed, if known. */
export function renderNoServices(section, { tenant, range, received }) {
  const fresh = received === 0;
  const title = fresh ? "No profiles yet" : `No profiles of tenant “${tenant}” in ${range}`;
  const advice = fresh
    ? "Point an agent at this address and its flame graph appears here within seconds."
    : `${known(received)}Widen the time range, look at another tenant, or point an agent here:`;
  section.replaceChildren(
    el("h1", { textContent: title }),
    el("p", { textContent: advice }),
    snippet("A Python program, with the pyroscope-io package", python(tenant)),
    snippet("A profile that you already have", command(tenant)),
    snippet("Any stacks at all, from a shell", folded(tenant)),
  );
}

export function renderNoProfiles(section, { service, range }) {
  section.replaceChildren(
    el("h1", { textContent: `No profiles of ${service} in ${range}` }),
    el("p", { textContent: "Widen the time range, or choose a service that pushed in it." }),
  );
}

function known(received) {
  return received > 0 ? `maar has received ${formatCount(received)} profiles in all. ` : "";
}

function python(tenant) {
  const settings = [["application_name", "my-service"], ["server_address", location.origin]];
  if (tenant !== DEFAULTS.tenant) settings.push(["tenant_id", tenant]);
  const lines = settings.map(([name, value]) => `    ${name}=${JSON.stringify(value)},`);
  return ["import pyroscope", "", "pyroscope.configure(", ...lines, ")"].join("\n");
}

function command(tenant) {
  const own = tenant === DEFAULTS.tenant ? "" : ` --tenant ${shellWord(tenant)}`;
  return `maar push profile.pb.gz --service my-service${own}`;
}

function folded(tenant) {
  const own = tenant === DEFAULTS.tenant ? "" : ` -H ${shellWord(`X-Scope-OrgID: ${tenant}`)}`;
  const address = `${location.origin}/ingest?name=my-service&format=groups`;
  return `echo 'main;work 12' | curl --data-binary @-${own} \\\n  '${address}'`;
}

// The tenant comes from the address bar, that is from anyone: it must stay one word of the shell.
function shellWord(text) {
  return /^[\w.-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

function snippet(title, text) {
  const code = el("code", { textContent: text });
  const copy = el("button", { type: "button", textContent: "Copy", "aria-label": `Copy: ${title}` });
  copy.addEventListener("click", async () => {
    copy.textContent = (await copied(text, code)) ? "Copied" : "Press Ctrl+C";
  });
  const head = el("figcaption", {}, el("span", { textContent: title }), copy);
  return el("figure", { className: "snippet" }, head, el("pre", {}, code));
}

// Browsers lend the clipboard only to pages from loopback or over TLS; elsewhere, select the text.
async function copied(text, code) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    getSelection().selectAllChildren(code);
    return false;
  }
}

// Everything people read, in one place.

export const text = {
  runs: "Runs",
  tasks: "Tasks",
  definitions: "Definitions",
  members: "Servers",
  overview: "Overview",
  compare: "Compare",
  search: "Search id, workflow, reference",
  noRuns: "No runs yet. Start the first one:",
  noRunsCommand: "treadle run flow.yaml",
  noMatch: "No run matches. Clear a filter to see more.",
  noDefinitions: "Nothing is deployed yet. Deploy a file or a folder:",
  noDefinitionsCommand: "treadle deploy flows/",
  noTasks: "Nobody is asked for anything right now.",
  reconnecting: "The server does not answer. Reconnecting…",
  help: "Keyboard",
  signIn: "Sign in",
  signInWhy: "This server asks who you are. Make a token with:",
  signInCommand: "treadle token create --user you --role operator",
};

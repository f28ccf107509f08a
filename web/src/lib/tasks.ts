// What people are asked, and what happened to it, in words.

import type { Json, Me, Task } from "./shapes";

export type Due = "" | "overdue" | "today" | "none";

/** Whether a task's deadline is of a kind; "today" is within a day from now, overdue ones included. */
export function isDue(task: Task, due: string, now: number): boolean {
  if (due === "none") return task.due === null;
  if (due === "") return true;
  if (task.due === null) return false;
  const left = Date.parse(task.due) - now;
  return due === "overdue" ? left < 0 : left < 86_400_000;
}

/** The most urgent first; what has no deadline comes last, oldest first. */
export function urgent(tasks: Task[]): Task[] {
  const due = (task: Task): number => (task.due === null ? Infinity : Date.parse(task.due));
  return [...tasks].sort((a, b) => {
    const [one, other] = [due(a), due(b)];
    return one === other ? a.created_at.localeCompare(b.created_at) : one - other;
  });
}

/** Whether somebody may answer a task; the server judges again. */
export function mayAnswer(task: Task, me: Me | undefined): boolean {
  if (me === undefined || !me.may.includes("task")) return false;
  return me.may.includes("admin") || task.roles.length === 0 || task.assignee === me.user || task.roles.some((role) => me.roles.includes(role));
}

/** Whether somebody may give a task to somebody else: who has it, or an admin. */
export function mayAssign(task: Task, me: Me | undefined): boolean {
  return me !== undefined && (me.may.includes("admin") || (me.may.includes("task") && task.assignee === me.user));
}

/** One entry of a task's history as a sentence, without its time. */
export function told(entry: { [key: string]: Json }): string {
  const said = (key: string): string => (typeof entry[key] === "string" ? (entry[key] as string) : "");
  const by = said("by");
  const event = said("event");
  switch (event) {
    case "assigned":
      return `${by || "somebody"} gave it to ${said("to") || "nobody"}`;
    case "commented":
      return `${by || "somebody"}: ${said("text")}`;
    case "escalated":
      return `escalated to ${said("to") || "others"}`;
    case "created":
      return "asked for";
    default:
      return by === "" ? event : `${event} by ${by}`;
  }
}

import { Component, type ReactNode } from "react";

/** A part that cannot be shown takes nothing else with it. */
export class Boundary extends Component<{ children: ReactNode }, { failed: Error | null }> {
  override state: { failed: Error | null } = { failed: null };

  static getDerivedStateFromError(error: Error): { failed: Error } {
    return { failed: error };
  }

  override render(): ReactNode {
    if (this.state.failed === null) return this.props.children;
    return (
      <div className="error-box" role="alert">
        <strong>This part of the page failed: {this.state.failed.message}</strong>{" "}
        <button onClick={() => this.setState({ failed: null })}>Try again</button>
      </div>
    );
  }
}

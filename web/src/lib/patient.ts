/** A part of the console that is loaded when it is first shown: tried again while the server is away. */
export async function patient<T>(load: () => Promise<T>): Promise<T> {
  for (let pause = 500; ; pause = Math.min(pause * 2, 5000)) {
    try {
      return await load();
    } catch {
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }
}

package mien.app.keys;

/** When a key of the hardware's works. */
enum Opens {
    /** Only while the phone is unlocked: for what nobody needs while it lies there. */
    WHILE_UNLOCKED(".unlocked"),
    /** From the first unlocking after a restart on: for training at night, when the phone is locked. */
    ALWAYS("");

    private final String ending;

    Opens(String ending) {
        this.ending = ending;
    }

    /** Returns the name under which a key of this kind is kept. */
    String named(String name) {
        return name + ending;
    }

    Opens other() {
        return this == ALWAYS ? WHILE_UNLOCKED : ALWAYS;
    }
}

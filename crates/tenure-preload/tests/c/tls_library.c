/* A library with a thread-local variable. */
static __thread int value = 42;
int *variable(void) { return &value; }

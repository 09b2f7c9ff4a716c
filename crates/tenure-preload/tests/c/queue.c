/* As the library for io_uring. */
int io_uring_queue_init(unsigned entries, void *ring, unsigned flags) { return ring || entries + flags ? -1 : 0; }

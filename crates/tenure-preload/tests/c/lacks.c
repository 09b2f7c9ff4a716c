/* A library that cannot be loaded: nobody defines what it calls. */
void nowhere(void);
void calls(void) { nowhere(); }

#ifndef MAP_H
#define MAP_H
void forget_missing(void);
#endif

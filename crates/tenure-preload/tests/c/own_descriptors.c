/* Which descriptors are open at the start, as programs look that warn of those that leaked to them. */
#include "check.h"

int main(void) {
    for (int number = 3; number < 2000; number++)
        if (fcntl(number, F_GETFD) >= 0)
            printf("%d is open\n", number);
    return 0;
}

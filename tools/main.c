/* Entry of the program. */
#include "tools/cli.h"

int main(int argc, char **argv) {
    return cli_main(argc, argv);
}

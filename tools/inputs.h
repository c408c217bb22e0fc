/* The pictures that a command line names, one after another: files as they stand, folders by name
 * (byte order), lists line by line. Nothing is opened here but folders and the list.
 */
#ifndef TTV_TOOLS_INPUTS_H
#define TTV_TOOLS_INPUTS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

typedef struct InputOptions {
    bool recursive;      /* folders: also the folders in them (links to folders are not followed) */
    bool null_separated; /* list: names end in NUL instead of newline */
    const char *files_from; /* list file, "-" for standard input, "" or NULL for none; read last */
} InputOptions;

typedef struct Inputs Inputs;

/* `paths` must outlive the Inputs. "-" among them is standard input (a picture). STATUS_USAGE when
 * standard input is asked for twice. */
Status inputs_open(const InputOptions *o, int count, char **paths, Inputs **out);
void inputs_close(Inputs *in);

typedef struct Input {
    const char *path; /* valid until the next call; "-" for standard input */
    bool is_stdin;
    const char *error; /* this name leads to no picture (empty folder, ...): why; NULL otherwise */
} Input;
/* STATUS_END behind the last. Other failures end the walk (the list cannot be read, memory). */
Status inputs_next(Inputs *in, Input *out);

/* Files in folders that were passed over because their names do not end in .jpg, .jpeg or .png. */
int64_t inputs_passed_over(const Inputs *in);

#endif

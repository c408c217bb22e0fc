/* Shared by config*.c and option.c only. */
#ifndef TTV_CORE_CONFIG_INTERNAL_H
#define TTV_CORE_CONFIG_INTERNAL_H

#include "core/config.h"

enum { CONFIG_MAX_BYTES = 1 << 20, CONFIG_MAX_INCLUDES = 8, VALUE_TEXT = 4 * CONFIG_TEXT + 8 };

/* What is known about one option beside its value. */
typedef struct Slot {
    char *origin; /* "configs/x.ini:14", "--set"; NULL: still the default */
    int file; /* number of the file read that set it last, and where, to find duplicates in one file
               */
    int line;
} Slot;

struct Config {
    Section *sections;
    int count;
    Slot *slots; /* of all options in table order */
    int files;   /* files read so far */
};

typedef struct Place { /* one option of one section */
    const Section *section;
    const Option *option;
    Slot *slot;
} Place;

/* section NULL: any section that has the key. False when there is none. */
bool config_find(const Config *c, const char *section, const char *key, Place *place);
const Section *config_find_section(const Config *c, const char *name);

/* Parses `text` into the field; the message starts with "<where>: ". */
Status config_store(const Place *place, const char *text, const char *where, Status code);

/* STATUS with "unknown key/section ...; did you mean ...?" after "<where>: ". */
Status config_unknown_key(const Config *c, const char *section, const char *key, const char *where,
                          Status code);
Status config_unknown_section(const Config *c, const char *name, const char *where, Status code);

/* Parses one value as text; messages: "expected ...". */
Status option_parse(const Option *o, void *values, const char *text, Status code);

#endif

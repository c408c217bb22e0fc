#include "core/config_internal.h"

#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"

typedef struct Text {
    char *data;
    size_t length, capacity;
} Text;

static Status append(Text *t, const char *piece) {
    size_t length = strlen(piece);
    if (t->length + length + 1 > t->capacity) {
        size_t capacity = 2 * (t->length + length + 1024);
        void *block = t->data;
        TRY(mem_grow(&block, (int64_t)capacity, 1, "a configuration's text"));
        t->data = block;
        t->capacity = capacity;
    }
    memcpy(t->data + t->length, piece, length + 1);
    t->length += length;
    return STATUS_OK;
}

static Status write_option(Text *t, const Section *s, const Option *o, const Slot *slot,
                           bool origins) {
    char value[VALUE_TEXT];
    option_value_text(o, s->values, value, sizeof value);
    TRY(append(t, o->key));
    TRY(append(t, value[0] != '\0' ? " = " : " ="));
    TRY(append(t, value));
    if (origins) {
        char shown[512];
        const char *origin = slot->origin != NULL ? slot->origin : "default";
        TRY(append(t, "  ; "));
        TRY(append(t, text_printable(origin, shown, sizeof shown)));
    }
    return append(t, "\n");
}

static Status write_all(const Config *c, bool origins, Text *t) {
    const Slot *slot = c->slots;
    TRY(append(t, ""));
    for (int i = 0; i < c->count; i++) {
        const Section *s = &c->sections[i];
        TRY(append(t, i > 0 ? "\n[" : "["));
        TRY(append(t, s->name));
        TRY(append(t, "]\n"));
        for (const Option *o = s->options; o->key != NULL; o++) {
            TRY(write_option(t, s, o, slot++, origins));
        }
    }
    return STATUS_OK;
}

Status config_write(const Config *c, bool origins, char **text) {
    Text t = {0};
    Status s = write_all(c, origins, &t);
    if (s != STATUS_OK) mem_free(t.data);
    *text = s == STATUS_OK ? t.data : NULL;
    return s;
}

/* The table of all options: defaults, look-up, --set and flags. */
#include "core/config_internal.h"

#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"

enum { MAX_NAMES = 1024, SHOWN = 120 };

static int option_count(const Section *s) {
    int count = 0;
    while (s->options[count].key != NULL) count++;
    return count;
}

static Status set_default(const Section *s, const Option *o) {
    static const char *const zeros[] = {"false", "0", "0", "", ""};
    if (o->initial == NULL && o->type == OPTION_CHOICE) {
        *(int *)((char *)s->values + o->offset) = 0;
        return STATUS_OK;
    }
    const char *text = o->initial != NULL ? o->initial : zeros[o->type];
    return status_context(option_parse(o, s->values, text, STATUS_INTERNAL), "default in [%s]",
                          s->name);
}

static Status config_init(Config *c, const Section *sections, int count) {
    void *block;
    TRY(mem_alloc(&block, count, sizeof(Section), "a configuration"));
    c->sections = block;
    c->count = count;
    int slots = 0;
    for (int i = 0; i < count; i++) {
        c->sections[i] = sections[i];
        slots += option_count(&sections[i]);
    }
    TRY(mem_alloc(&block, slots, sizeof(Slot), "a configuration"));
    c->slots = block;
    for (int i = 0; i < count; i++) {
        for (const Option *o = sections[i].options; o->key != NULL; o++) {
            TRY(set_default(&sections[i], o));
        }
    }
    return STATUS_OK;
}

Status config_new(const Section *sections, int count, Config **out) {
    void *block;
    *out = NULL;
    TRY(mem_alloc(&block, 1, sizeof(Config), "a configuration"));
    Config *c = block;
    Status s = config_init(c, sections, count);
    if (s != STATUS_OK) {
        config_free(c);
        return s;
    }
    *out = c;
    return STATUS_OK;
}

void config_free(Config *c) {
    if (c == NULL) return;
    if (c->slots != NULL) {
        int slot = 0;
        for (int i = 0; i < c->count; i++) {
            for (int n = option_count(&c->sections[i]); n > 0; n--)
                mem_free(c->slots[slot++].origin);
        }
    }
    mem_free(c->slots);
    mem_free(c->sections);
    mem_free(c);
}

bool config_find(const Config *c, const char *section, const char *key, Place *place) {
    Slot *slot = c->slots;
    for (int i = 0; i < c->count; i++) {
        const Section *s = &c->sections[i];
        bool wanted = section == NULL || strcmp(s->name, section) == 0;
        for (const Option *o = s->options; o->key != NULL; o++, slot++) {
            if (!wanted || strcmp(o->key, key) != 0) continue;
            *place = (Place){s, o, slot};
            return true;
        }
    }
    return false;
}

const Section *config_find_section(const Config *c, const char *name) {
    for (int i = 0; i < c->count; i++) {
        if (strcmp(c->sections[i].name, name) == 0) return &c->sections[i];
    }
    return NULL;
}

Status config_store(const Place *place, const char *text, const char *where, Status code) {
    Status s = option_parse(place->option, place->section->values, text, code);
    if (s != STATUS_OK) return status_context(s, "%s", where);
    char *origin;
    TRY(mem_string(&origin, where));
    mem_free(place->slot->origin);
    place->slot->origin = origin;
    return STATUS_OK;
}

Status config_unknown_section(const Config *c, const char *name, const char *where, Status code) {
    const char *names[MAX_NAMES];
    char shown[SHOWN];
    int count = 0;
    for (int i = 0; i < c->count && count < MAX_NAMES; i++) names[count++] = c->sections[i].name;
    const char *near = nearest_name(name, names, count);
    text_printable(name, shown, sizeof shown);
    if (near == NULL) return status_set(code, "%s: unknown section [%s]", where, shown);
    return status_set(code, "%s: unknown section [%s]; did you mean [%s]?", where, shown, near);
}

Status config_unknown_key(const Config *c, const char *section, const char *key, const char *where,
                          Status code) {
    const Section *s = config_find_section(c, section);
    if (s == NULL) return config_unknown_section(c, section, where, code);
    const char *names[MAX_NAMES];
    char shown[SHOWN];
    Place other;
    int count = 0;
    for (const Option *o = s->options; o->key != NULL && count < MAX_NAMES; o++) {
        names[count++] = o->key;
    }
    text_printable(key, shown, sizeof shown);
    if (config_find(c, NULL, key, &other)) {
        return status_set(code, "%s: unknown key '%s' in [%s]; it belongs to [%s]", where, shown,
                          section, other.section->name);
    }
    const char *near = nearest_name(key, names, count);
    if (near == NULL) {
        return status_set(code, "%s: unknown key '%s' in [%s]", where, shown, section);
    }
    return status_set(code, "%s: unknown key '%s' in [%s]; did you mean '%s'?", where, shown,
                      section, near);
}

Status config_set(Config *c, const char *assignment, const char *origin) {
    const char *equals = strchr(assignment, '=');
    const char *dot = strchr(assignment, '.');
    char shown[SHOWN], where[2 * SHOWN], section[SHOWN], key[SHOWN];
    text_printable(assignment, shown, sizeof shown);
    snprintf(where, sizeof where, "%s %s", origin, shown);
    if (equals == NULL || dot == NULL || dot > equals || dot - assignment >= SHOWN ||
        equals - dot > SHOWN) {
        return status_set(STATUS_USAGE, "%s: expected section.key=value", where);
    }
    snprintf(section, sizeof section, "%.*s", (int)(dot - assignment), assignment);
    snprintf(key, sizeof key, "%.*s", (int)(equals - dot - 1), dot + 1);
    Place place;
    if (!config_find(c, section, key, &place)) {
        return config_unknown_key(c, section, key, where, STATUS_USAGE);
    }
    return config_store(&place, equals + 1, origin, STATUS_USAGE);
}

/* The option behind a flag. "no-x" finds the boolean x and sets *negated. */
static bool find_flag(const Config *c, const char *flag, Place *place, bool *negated) {
    for (int pass = 0; pass < 2; pass++) {
        *negated = pass == 1;
        if (*negated && strncmp(flag, "no-", 3) != 0) return false;
        const char *name = *negated ? flag + 3 : flag;
        Slot *slot = c->slots;
        for (int i = 0; i < c->count; i++) {
            const Section *s = &c->sections[i];
            for (const Option *o = s->options; o->key != NULL; o++, slot++) {
                if (o->flag == NULL || strcmp(o->flag, name) != 0) continue;
                if (*negated && o->type != OPTION_BOOL) continue;
                *place = (Place){s, o, slot};
                return true;
            }
        }
    }
    return false;
}

static Status unknown_flag(const Config *c, const char *flag) {
    const char *names[MAX_NAMES];
    char shown[SHOWN];
    int count = 0;
    for (int i = 0; i < c->count; i++) {
        for (const Option *o = c->sections[i].options; o->key != NULL; o++) {
            if (o->flag != NULL && count < MAX_NAMES) names[count++] = o->flag;
        }
    }
    const char *near = nearest_name(flag, names, count);
    text_printable(flag, shown, sizeof shown);
    if (near == NULL) return status_set(STATUS_USAGE, "unknown flag '--%s'", shown);
    return status_set(STATUS_USAGE, "unknown flag '--%s'; did you mean '--%s'?", shown, near);
}

Status config_set_flag(Config *c, const char *flag, const char *value) {
    Place place;
    bool negated;
    if (!find_flag(c, flag, &place, &negated)) return unknown_flag(c, flag);
    if (negated && value != NULL) {
        return status_set(STATUS_USAGE, "flag '--%s' takes no value", flag);
    }
    if (value == NULL && place.option->type != OPTION_BOOL) {
        return status_set(STATUS_USAGE, "flag '--%s' needs a value", flag);
    }
    char where[SHOWN];
    snprintf(where, sizeof where, "--%s", flag);
    if (value == NULL) value = negated ? "false" : "true";
    return config_store(&place, value, where, STATUS_USAGE);
}

bool config_is_set(const Config *c, const char *section, const char *key) {
    Place place;
    return config_find(c, section, key, &place) && place.slot->origin != NULL;
}

void config_each(const Config *c, void (*visit)(void *user, const Section *s, const Option *o),
                 void *user) {
    for (int i = 0; i < c->count; i++) {
        for (const Option *o = c->sections[i].options; o->key != NULL; o++) {
            visit(user, &c->sections[i], o);
        }
    }
}

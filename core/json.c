#include "core/json.h"

#include <pthread.h>

#include <cjson/cJSON.h>

#include "core/json_scan.h"
#include "core/memory.h"

static pthread_once_t hooks_once = PTHREAD_ONCE_INIT;

static void hooks_install(void) {
    cJSON_Hooks hooks = {mem_malloc, mem_free};
    cJSON_InitHooks(&hooks);
}

Status json_parse(const char *text, size_t size, const char *name, struct cJSON **out) {
    *out = NULL;
    TRY(json_check(text, size, name));
    pthread_once(&hooks_once, hooks_install);
    *out = cJSON_ParseWithLengthOpts(text, size, NULL, 0);
    if (*out != NULL) return STATUS_OK;
    /* The text is well-formed and within cJSON's limits: only memory can be missing. */
    return status_set(STATUS_MEMORY, "%s: out of memory for %zu bytes of JSON", name, size);
}

void json_free(struct cJSON *value) {
    cJSON_Delete(value);
}

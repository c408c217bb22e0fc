#include "core/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MESSAGE_SIZE 1024

static _Thread_local char message[MESSAGE_SIZE];

Status status_set(Status code, const char *format, ...) {
    /* Formatted aside: an argument may be the old message itself. */
    char text[MESSAGE_SIZE];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    memcpy(message, text, sizeof text);
    return code;
}

Status status_context(Status code, const char *format, ...) {
    if (code == STATUS_OK || code == STATUS_END) return code;
    char text[MESSAGE_SIZE];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    char joined[2 * MESSAGE_SIZE + 2];
    snprintf(joined, sizeof joined, "%s: %s", text, message);
    joined[MESSAGE_SIZE - 1] = '\0';
    memcpy(message, joined, sizeof message);
    return code;
}

Status status_errno(const char *format, ...) {
    int error = errno;
    char text[MESSAGE_SIZE];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    char reason[128];
    return status_set(STATUS_IO, "%s: %s", text, strerror_r(error, reason, sizeof reason));
}

const char *status_message(void) {
    return message;
}

const char *status_name(Status code) {
    switch (code) {
    case STATUS_OK:
        return "ok";
    case STATUS_END:
        return "end";
    case STATUS_USAGE:
        return "usage";
    case STATUS_DATA:
        return "data";
    case STATUS_IO:
        return "io";
    case STATUS_MEMORY:
        return "memory";
    case STATUS_DEVICE:
        return "device";
    case STATUS_NUMERIC:
        return "numeric";
    case STATUS_STOPPED:
        return "stopped";
    case STATUS_PEER:
        return "peer";
    case STATUS_INTERNAL:
        return "internal";
    }
    return "unknown";
}

int status_exit_code(Status code) {
    switch (code) {
    case STATUS_OK:
    case STATUS_END:
        return 0;
    case STATUS_USAGE:
        return 2;
    case STATUS_DATA:
        return 3;
    case STATUS_IO:
        return 4;
    case STATUS_MEMORY:
    case STATUS_DEVICE:
        return 5;
    case STATUS_NUMERIC:
        return 6;
    case STATUS_STOPPED:
    case STATUS_PEER:
        return 75;
    case STATUS_INTERNAL:
        return 70;
    }
    return 70;
}

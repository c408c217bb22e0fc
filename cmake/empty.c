/* A room that has no source yet. */
typedef int ttv_room_is_empty;

// SPDX-License-Identifier: Apache-2.0
// list.hpp - an intrusive doubly linked list.
//
// Model    The link lives in the element; an element is on one list or on none.
// Threads  None of its own: the owner's lock guards the list and its elements' links.
// Failure  Allocates nothing and cannot fail; an empty list pops nullptr.
#pragma once

#include <cstddef>

#include <xmm/core/config.hpp>

namespace xmm {

struct list_link {
    list_link* before = nullptr;
    list_link* after = nullptr;

    [[nodiscard]] bool is_linked() const noexcept { return before != nullptr; }
};

template <class T, list_link T::*Link>
class list {
public:
    list() noexcept { ends_.before = ends_.after = &ends_; }
    list(const list&) = delete;
    list& operator=(const list&) = delete;

    [[nodiscard]] bool is_empty() const noexcept { return ends_.after == &ends_; }
    [[nodiscard]] std::size_t count() const noexcept { return count_; }
    [[nodiscard]] static bool is_linked(const T& element) noexcept {
        return (element.*Link).is_linked();
    }

    void push_front(T& element) noexcept { insert(element, ends_, *ends_.after); }
    void push_back(T& element) noexcept { insert(element, *ends_.before, ends_); }

    void remove(T& element) noexcept {
        list_link& link = element.*Link;
        XMM_ASSERT(link.is_linked(), "removed from a list that it is not on");
        link.before->after = link.after;
        link.after->before = link.before;
        link = {};
        --count_;
    }
    [[nodiscard]] T* front() noexcept { return is_empty() ? nullptr : owner(ends_.after); }
    [[nodiscard]] T* pop_front() noexcept {
        T* element = front();
        if (element != nullptr) {
            remove(*element);
        }
        return element;
    }
    // The element nearest to the back that fits; nullptr if none does.
    template <class Fits>
    [[nodiscard]] T* find_last(Fits&& fits) {
        for (list_link* at = ends_.before; at != &ends_; at = at->before) {
            if (T* element = owner(at); fits(*element)) {
                return element;
            }
        }
        return nullptr;
    }
    // fn may remove the element that it is given.
    template <class Fn>
    void for_each(Fn&& fn) {
        for (list_link* at = ends_.after; at != &ends_;) {
            T* element = owner(at);
            at = at->after;  // first, so that fn may remove the element
            fn(*element);
        }
    }

private:
    void insert(T& element, list_link& before, list_link& after) noexcept {
        list_link& link = element.*Link;
        XMM_ASSERT(!link.is_linked(), "pushed while on a list");
        link.before = &before;
        link.after = &after;
        before.after = &link;
        after.before = &link;
        ++count_;
    }
    // The offset of Link inside T; computed from storage, since offsetof takes no pointer to member.
    static T* owner(list_link* link) noexcept {
        alignas(T) static constexpr char storage[sizeof(T)] = {};
        const T* probe = reinterpret_cast<const T*>(&storage);
        const auto offset = reinterpret_cast<const char*>(&(probe->*Link)) - storage;
        return reinterpret_cast<T*>(reinterpret_cast<char*>(link) - offset);
    }

    list_link ends_;
    std::size_t count_ = 0;
};

}  // namespace xmm
